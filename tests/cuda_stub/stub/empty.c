// Libraries of which ONNX Runtime uses one function or none: libcuda and libcurand.
int cuTensorMapEncodeTiled(void) { return 0; }
