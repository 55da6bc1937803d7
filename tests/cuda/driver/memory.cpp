// The device's memory. Each allocation is memory of the host between two inaccessible pages, and
// is filled with NaN at first.
#include "driver.h"
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <sys/mman.h>

const size_t PAGE = 4096;
/// Alignment of CUDA's allocations.
const size_t ALIGNED = 256;
/// Larger allocations are not filled: they keep the host's zero pages, which cost no memory until
/// they are written.
const size_t POISONED_AT_MOST = 64 << 20;

struct Mapping {
  size_t bytes, mapped;
  char *start;
};
static std::map<uint64_t, Mapping> mappings;
static size_t used = 0;
static std::mutex lock;

size_t memory_used() {
  std::lock_guard<std::mutex> guard(lock);
  return used;
}

bool idle() {
  static const size_t above = setting("STANDIN_IDLE_ABOVE", ~size_t(0));
  return memory_used() > above;
}

API int cuMemGetInfo_v2(size_t *, size_t *);

API int cuMemAlloc_v2(uint64_t *address, size_t bytes) {
  size_t free, total;
  cuMemGetInfo_v2(&free, &total);
  if (bytes > free) return OUT_OF_MEMORY;
  size_t room = (bytes + PAGE - 1) / PAGE * PAGE, mapped = room + 2 * PAGE;
  const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  void *start = mmap(nullptr, mapped, PROT_NONE, flags, -1, 0);
  if (start == MAP_FAILED) return OUT_OF_MEMORY;
  char *inner = static_cast<char *>(start) + PAGE;
  mprotect(inner, room, PROT_READ | PROT_WRITE);
  if (bytes <= POISONED_AT_MOST) memset(inner, 0xff, room);
  // As close to the inaccessible page behind it as the alignment allows.
  *address = reinterpret_cast<uint64_t>(inner + (room - bytes) / ALIGNED * ALIGNED);
  std::lock_guard<std::mutex> guard(lock);
  mappings[*address] = {bytes, mapped, static_cast<char *>(start)};
  used += bytes;
  return SUCCESS;
}

API int cuMemFree_v2(uint64_t address) {
  std::lock_guard<std::mutex> guard(lock);
  auto found = mappings.find(address);
  if (found == mappings.end()) return INVALID_VALUE;
  munmap(found->second.start, found->second.mapped);
  used -= found->second.bytes;
  mappings.erase(found);
  return SUCCESS;
}

API int cuMemAllocAsync(uint64_t *address, size_t bytes, void *) {
  return cuMemAlloc_v2(address, bytes);
}
API int cuMemFreeAsync(uint64_t address, void *) { return cuMemFree_v2(address); }

API int cuMemAllocHost_v2(void **address, size_t bytes) {
  *address = aligned_alloc(64, (bytes + 63) / 64 * 64);
  return *address ? SUCCESS : OUT_OF_MEMORY;
}
API int cuMemFreeHost(void *address) {
  free(address);
  return SUCCESS;
}

static void *at(uint64_t address) { return reinterpret_cast<void *>(address); }

API int cuMemcpyHtoD_v2(uint64_t to, const void *from, size_t bytes) {
  memcpy(at(to), from, bytes);
  return SUCCESS;
}
API int cuMemcpyDtoH_v2(void *to, uint64_t from, size_t bytes) {
  memcpy(to, at(from), bytes);
  return SUCCESS;
}
API int cuMemcpyHtoDAsync_v2(uint64_t to, const void *from, size_t bytes, void *) {
  return cuMemcpyHtoD_v2(to, from, bytes);
}
API int cuMemcpyDtoHAsync_v2(void *to, uint64_t from, size_t bytes, void *) {
  return cuMemcpyDtoH_v2(to, from, bytes);
}
API int cuMemcpyDtoDAsync_v2(uint64_t to, uint64_t from, size_t bytes, void *) {
  memmove(at(to), at(from), bytes);
  return SUCCESS;
}
API int cuMemsetD8Async(uint64_t to, unsigned char value, size_t bytes, void *) {
  memset(at(to), value, bytes);
  return SUCCESS;
}

/// One side of CUDA_MEMCPY2D. Types other than the host's (1) are the device's.
struct Side {
  size_t x, y;
  int type;
  char *host;
  uint64_t device;
  void *array;
  size_t pitch;

  char *line(size_t line) const {
    char *start = type == 1 ? host : static_cast<char *>(at(device));
    return start + (y + line) * pitch + x;
  }
};
struct Copy2D {
  Side from, to;
  size_t width, height;
};

API int cuMemcpy2DAsync_v2(const Copy2D *copy, void *) {
  for (size_t line = 0; line < copy->height; line++)
    memcpy(copy->to.line(line), copy->from.line(line), copy->width);
  return SUCCESS;
}
