// Shared by the parts of the stand-in for CUDA's driver.
#pragma once
#include "../include/runtime.h"
#include <cstddef>
#include <cstdint>
#include <string>

#define API extern "C" __attribute__((visibility("default")))

/// The values of CUresult that are used.
enum Result {
  SUCCESS = 0,
  INVALID_VALUE = 1,
  OUT_OF_MEMORY = 2,
  INVALID_DEVICE = 101,
  INVALID_IMAGE = 200,
  NOT_FOUND = 500,
};

struct Dim {
  unsigned x, y, z;
};

const unsigned SHARED_BY_DEFAULT = 48 << 10;
/// The limit of a block on an H100.
const unsigned SHARED_AT_MOST = 227 << 10;

/// A kernel in the library that g++ compiled from its source (include/cuda_runtime.h).
struct Kernel {
  std::string name;
  /// Null if the kernel was loaded while execution was off.
  void (*entry)(void **parameters);
  Dim *thread_idx, *block_idx, *block_dim, *grid_dim;
  unsigned char *shared;
  /// Bytes of shared memory that a block may have.
  unsigned shared_allowed;
};

/// Writes a line to standard error.
void say(const char *format, ...) __attribute__((format(printf, 1, 2)));
/// A number in an environment variable; `otherwise` if it is not set.
size_t setting(const char *variable, size_t otherwise);

/// compile.cpp: the path of the library compiled from a kernel's source; empty if g++ refuses it.
std::string library_of(const std::string &text);

/// memory.cpp: allocated bytes.
size_t memory_used();
/// Whether execution is off, because more than STANDIN_IDLE_ABOVE bytes are allocated.
bool idle();

/// threads.cpp: executes one block of `threads` threads. The caller has set `block_idx`.
void run_block(const Kernel &kernel, void **parameters, Dim block, unsigned threads);
/// The functions that kernels call.
extern Runtime runtime_of_kernels;
/// The position of the running thread, for messages.
std::string place();
