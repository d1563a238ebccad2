// cuBLASLt without arithmetic; see cublas.c.
static char object[64];

#define SUCCEEDS(name) \
  int name(void) { return 0; }
#define LAUNCHES(name) \
  int name(void) { return stub_launch(); }

#define CREATES(name) \
  int name(void **created) { return *created = object, 0; }

int stub_launch(void);  // of libcudart

CREATES(cublasLtCreate)
CREATES(cublasLtMatmulDescCreate)
CREATES(cublasLtMatmulPreferenceCreate)
CREATES(cublasLtMatrixLayoutCreate)
CREATES(cublasLtMatrixTransformDescCreate)
SUCCEEDS(cublasLtDestroy)
SUCCEEDS(cublasLtMatmulAlgoConfigSetAttribute)
SUCCEEDS(cublasLtMatmulAlgoInit)
SUCCEEDS(cublasLtMatmulDescDestroy)
SUCCEEDS(cublasLtMatmulDescSetAttribute)
SUCCEEDS(cublasLtMatmulPreferenceDestroy)
SUCCEEDS(cublasLtMatmulPreferenceSetAttribute)
SUCCEEDS(cublasLtMatrixLayoutDestroy)
SUCCEEDS(cublasLtMatrixLayoutSetAttribute)
SUCCEEDS(cublasLtMatrixTransformDescDestroy)
SUCCEEDS(cublasLtMatrixTransformDescSetAttribute)
LAUNCHES(cublasLtMatmul)
LAUNCHES(cublasLtMatrixTransform)
int cublasLtMatmulAlgoGetHeuristic(void *handle, void *operation, void *a, void *b, void *c,
                                   void *d, void *preference, int wanted, void *results,
                                   int *found) {
  return *found = 1, 0;
}
