// Everything an sm100 kernel uses.
#pragma once
#include "gemmgen/launch_control.cuh"
#include "gemmgen/load.cuh"
#include "gemmgen/pair_barriers.cuh"
#include "gemmgen/ring.cuh"
#include "gemmgen/scales.cuh"
#include "gemmgen/schedule.cuh"
#include "gemmgen/tmem_store.cuh"
#include "gemmgen/umma_operand.cuh"
#include "ptx/control.cuh"
#include "ptx/tcgen05.cuh"
