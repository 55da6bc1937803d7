// The device, its only context, and streams, on which all work is done immediately.
#include "driver.h"
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>

void say(const char *format, ...) {
  char line[1024];
  va_list values;
  va_start(values, format);
  vsnprintf(line, sizeof line, format, values);
  va_end(values);
  fprintf(stderr, "stand-in for CUDA: %s\n", line);
}

size_t setting(const char *variable, size_t otherwise) {
  const char *given = getenv(variable);
  return given ? strtoull(given, nullptr, 10) : otherwise;
}

static size_t total_memory() { return setting("STANDIN_MEMORY", size_t(4) << 30); }
/// The compute capability: 90 is an H100, 80 an A100, 75 a T4.
static int capability() { return int(setting("STANDIN_CC", 90)); }

API int cuInit(unsigned) { return SUCCESS; }
API int cuDriverGetVersion(int *version) {
  *version = 13000;
  return SUCCESS;
}
API int cuDeviceGetCount(int *count) {
  *count = 1;
  return SUCCESS;
}
API int cuDeviceGet(int *device, int index) {
  *device = index;
  return index == 0 ? SUCCESS : INVALID_DEVICE;
}
API int cuDeviceGetName(char *name, int room, int) {
  snprintf(name, size_t(room), "stand-in for a CUDA device");
  return SUCCESS;
}
API int cuDeviceGetUuid_v2(char *uuid, int) {
  memset(uuid, 7, 16);
  return SUCCESS;
}
API int cuDeviceGetUuid(char *uuid, int device) { return cuDeviceGetUuid_v2(uuid, device); }
API int cuDeviceTotalMem_v2(size_t *bytes, int) {
  *bytes = total_memory();
  return SUCCESS;
}
API int cuMemGetInfo_v2(size_t *free, size_t *total) {
  *total = total_memory();
  *free = *total - memory_used();
  return SUCCESS;
}

/// Supports the values of CUdevice_attribute that CubeCL and Hearth query.
API int cuDeviceGetAttribute(int *value, int attribute, int) {
  switch (attribute) {
  case 1: *value = THREADS; break;            // MAX_THREADS_PER_BLOCK
  case 2: case 3: *value = THREADS; break;    // MAX_BLOCK_DIM_X, _Y
  case 4: *value = 64; break;                 // MAX_BLOCK_DIM_Z
  case 5: *value = 2147483647; break;         // MAX_GRID_DIM_X
  case 6: case 7: *value = 65535; break;      // MAX_GRID_DIM_Y, _Z
  case 8: *value = SHARED_BY_DEFAULT; break;  // MAX_SHARED_MEMORY_PER_BLOCK
  case 10: *value = LANES; break;             // WARP_SIZE
  case 16: *value = 132; break;               // MULTIPROCESSOR_COUNT
  case 75: *value = capability() / 10; break; // COMPUTE_CAPABILITY_MAJOR
  case 76: *value = capability() % 10; break; // COMPUTE_CAPABILITY_MINOR
  case 97: *value = SHARED_AT_MOST; break;    // MAX_SHARED_MEMORY_PER_BLOCK_OPTIN
  case 115: *value = 1; break;                // MEMORY_POOLS_SUPPORTED
  default:
    say("attribute %d of the device is not known", attribute);
    return INVALID_VALUE;
  }
  return SUCCESS;
}

static char context;
API int cuDevicePrimaryCtxRetain(void **retained, int) {
  *retained = &context;
  return SUCCESS;
}
API int cuDevicePrimaryCtxRelease_v2(int) { return SUCCESS; }
API int cuCtxSetCurrent(void *) { return SUCCESS; }
API int cuCtxGetCurrent(void **current) {
  *current = &context;
  return SUCCESS;
}
API int cuCtxSynchronize() { return SUCCESS; }

API int cuStreamCreate(void **stream, unsigned) {
  *stream = new char;
  return SUCCESS;
}
API int cuStreamCreateWithPriority(void **stream, unsigned flags, int) {
  return cuStreamCreate(stream, flags);
}
API int cuStreamDestroy_v2(void *stream) {
  delete static_cast<char *>(stream);
  return SUCCESS;
}
API int cuStreamSynchronize(void *) { return SUCCESS; }
API int cuStreamWaitEvent(void *, void *, unsigned) { return SUCCESS; }

API int cuEventCreate(void **event, unsigned) {
  *event = new timespec{};
  return SUCCESS;
}
API int cuEventRecord(void *event, void *) {
  clock_gettime(CLOCK_MONOTONIC, static_cast<timespec *>(event));
  return SUCCESS;
}
API int cuEventSynchronize(void *) { return SUCCESS; }
API int cuEventQuery(void *) { return SUCCESS; }
API int cuEventElapsedTime(float *milliseconds, void *from, void *to) {
  auto start = static_cast<timespec *>(from), end = static_cast<timespec *>(to);
  *milliseconds = float(double(end->tv_sec - start->tv_sec) * 1e3 +
                        double(end->tv_nsec - start->tv_nsec) * 1e-6);
  return SUCCESS;
}
API int cuEventDestroy_v2(void *event) {
  delete static_cast<timespec *>(event);
  return SUCCESS;
}

API int cuGetErrorName(int, const char **name) {
  *name = "STANDIN_ERROR";
  return SUCCESS;
}
API int cuGetErrorString(int, const char **text) {
  *text = "an error of the stand-in for CUDA";
  return SUCCESS;
}
API int cuGetExportTable(const void **table, const void *) {
  *table = nullptr;
  return NOT_FOUND;
}
