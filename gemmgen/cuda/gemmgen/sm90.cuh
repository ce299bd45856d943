// Everything an sm90 kernel uses.
#pragma once
#include "gemmgen/load.cuh"
#include "gemmgen/operand.cuh"
#include "gemmgen/promote.cuh"
#include "gemmgen/ring.cuh"
#include "gemmgen/schedule.cuh"
#include "gemmgen/store.cuh"
#include "gemmgen/to_l2.cuh"
#include "ptx/control.cuh"
