// What a test reads of the stub, by `stub_counts()` (tests/cuda_stub/stub_library.py).
#pragma once
#include <stddef.h>

struct counts {
  long launches;           // kernels started directly
  long captured_launches;  // kernels recorded in a graph
  long captures;           // graphs that were recorded
  long graph_launches;     // graphs started
  long host_to_device;     // copies
  long device_to_host;
  long device_to_device;
  long batches;            // of copies on the device
  long memsets;
  long synchronizations;   // of a stream or of the device
  long allocations;
  size_t allocated_bytes;
  size_t capacity_bytes;   // of the device; written by tests
};
