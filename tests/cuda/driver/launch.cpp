// Modules and launches. A launch executes its blocks one after the other before it returns.
#include "driver.h"
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <mutex>

/// Bytes behind the shared memory of a block (include/cuda_runtime.h), to detect writes past it.
const unsigned MARGIN = 64;
const unsigned char UNTOUCHED = 0xff;

/// Only one kernel runs at a time, in the whole process, because there is one set of fibers.
static std::mutex lock;

/// The module of every kernel that was loaded while execution was off.
static char not_compiled;

API int cuModuleLoadData(void **module, const void *image) {
  *module = &not_compiled;
  if (idle()) return SUCCESS;
  std::string library = library_of(static_cast<const char *>(image));
  if (library.empty()) return INVALID_IMAGE;
  *module = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (*module) return SUCCESS;
  say("%s", dlerror());
  return INVALID_IMAGE;
}
API int cuModuleUnload(void *) { return SUCCESS; }

template <class T> static T *symbol(void *library, const char *name) {
  void *found = dlsym(library, name);
  if (!found) say("%s", dlerror());
  return reinterpret_cast<T *>(found);
}

API int cuModuleGetFunction(void **function, void *module, const char *name) {
  auto kernel = new Kernel{};
  *function = kernel;
  kernel->name = name;
  kernel->shared_allowed = SHARED_BY_DEFAULT;
  if (module == &not_compiled) return SUCCESS;
  kernel->entry = symbol<void(void **)>(module, "entry");
  kernel->thread_idx = symbol<Dim>(module, "threadIdx");
  kernel->block_idx = symbol<Dim>(module, "blockIdx");
  kernel->block_dim = symbol<Dim>(module, "blockDim");
  kernel->grid_dim = symbol<Dim>(module, "gridDim");
  kernel->shared = symbol<unsigned char>(module, "dynamic_shared_mem");
  *symbol<Runtime *>(module, "runtime") = &runtime_of_kernels;
  return SUCCESS;
}

API int cuFuncSetAttribute(void *function, int attribute, int value) {
  const int MAX_DYNAMIC_SHARED_SIZE_BYTES = 8;
  if (attribute != MAX_DYNAMIC_SHARED_SIZE_BYTES || unsigned(value) > SHARED_AT_MOST) {
    say("attribute %d of a kernel cannot be %d", attribute, value);
    return INVALID_VALUE;
  }
  static_cast<Kernel *>(function)->shared_allowed = unsigned(value);
  return SUCCESS;
}

/// Prints where a kernel accessed memory that is not allocated, and then lets the signal end the
/// process.
static void on_fault(int signal, siginfo_t *info, void *) {
  say("%s: %p is not its memory", place().c_str(), info->si_addr);
  std::signal(signal, SIG_DFL);
}

/// Installs the handler while a kernel runs; otherwise the program's own handler is active.
struct FaultHandler {
  struct sigaction before;
  FaultHandler() {
    struct sigaction ours = {};
    ours.sa_sigaction = on_fault;
    ours.sa_flags = SA_SIGINFO | SA_ONSTACK;
    sigaction(SIGSEGV, &ours, &before);
  }
  ~FaultHandler() { sigaction(SIGSEGV, &before, nullptr); }
};

/// Opens STANDIN_LOG with line buffering, because any launch may end the process.
static FILE *open_log() {
  const char *name = getenv("STANDIN_LOG");
  FILE *file = name ? fopen(name, "a") : nullptr;
  if (file) setvbuf(file, nullptr, _IOLBF, 0);
  return file;
}

/// Writes a line for a launch: kernel, grid, block, bytes of shared memory.
static void log(const Kernel &kernel, Dim grid, Dim block, unsigned shared) {
  static FILE *file = open_log();
  if (!file) return;
  fprintf(file, "%s %u,%u,%u %u,%u,%u %u\n", kernel.name.c_str(), grid.x, grid.y, grid.z, block.x,
          block.y, block.z, shared);
}

static void run_grid(const Kernel &kernel, void **parameters, Dim grid, Dim block,
                     unsigned shared) {
  *kernel.grid_dim = grid;
  *kernel.block_dim = block;
  for (unsigned z = 0; z < grid.z; z++)
    for (unsigned y = 0; y < grid.y; y++)
      for (unsigned x = 0; x < grid.x; x++) {
        *kernel.block_idx = {x, y, z};
        // NaN in place of what the previous block left, because no block may rely on that.
        memset(kernel.shared, UNTOUCHED, shared + MARGIN);
        run_block(kernel, parameters, block, block.x * block.y * block.z);
        for (unsigned i = 0; i < MARGIN; i++)
          if (kernel.shared[shared + i] != UNTOUCHED) {
            say("%s: block %u,%u,%u wrote behind its %u bytes of shared memory",
                kernel.name.c_str(), x, y, z, shared);
            abort();
          }
      }
}

API int cuLaunchKernel(void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                       unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared,
                       void *, void **parameters, void **) {
  std::lock_guard<std::mutex> guard(lock);
  const Kernel &kernel = *static_cast<Kernel *>(function);
  Dim grid = {grid_x, grid_y, grid_z}, block = {block_x, block_y, block_z};
  uint64_t blocks = uint64_t(grid_x) * grid_y * grid_z;
  uint64_t threads = uint64_t(block_x) * block_y * block_z;
  bool fits = blocks && grid_x <= 0x7fffffff && grid_y <= 65535 && grid_z <= 65535 && threads &&
              threads <= THREADS && block_z <= 64 && shared <= kernel.shared_allowed;
  if (!fits) {
    say("%s cannot have a grid of %u,%u,%u, blocks of %u,%u,%u and %u bytes of shared memory",
        kernel.name.c_str(), grid_x, grid_y, grid_z, block_x, block_y, block_z, shared);
    return INVALID_VALUE;
  }
  log(kernel, grid, block, shared);
  if (idle()) return SUCCESS;
  if (!kernel.entry) {
    say("%s was loaded while nothing was executed", kernel.name.c_str());
    return INVALID_IMAGE;
  }
  FaultHandler handler;
  run_grid(kernel, parameters, grid, block, shared);
  return SUCCESS;
}
