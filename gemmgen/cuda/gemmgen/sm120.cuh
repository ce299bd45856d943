// Everything an sm120 kernel uses.
#pragma once
#include "gemmgen/fragments.cuh"
#include "gemmgen/load.cuh"
#include "gemmgen/ring.cuh"
#include "gemmgen/scale_words.cuh"
#include "gemmgen/schedule.cuh"
#include "gemmgen/split_k.cuh"
#include "gemmgen/store.cuh"
#include "gemmgen/swapped_store.cuh"
#include "ptx/control.cuh"
#include "ptx/mma_sync.cuh"
