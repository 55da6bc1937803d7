// What a kernel's library is given by the driver that runs it.
#pragma once

/// The largest block, and the lanes of a warp.
const unsigned THREADS = 1024, LANES = 32;
/// What one lane can show the others of its warp, in bytes.
const unsigned SLOT = 64;

struct Runtime {
  /// Returns when every thread of the block that has not ended is there.
  void (*block_barrier)();
  /// Returns when every lane of the mask that has not ended is there.
  void (*warp_barrier)(unsigned lanes);
  /// LANES slots of the calling thread's warp.
  char *(*warp_slots)();
  /// Says what the kernel did wrong, where, and ends the process.
  void (*fail)(const char *what);
};
