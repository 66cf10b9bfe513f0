/* Attention with T5's bias and the gradient of its table, in C99. */
#include <relpos.h>
#include <stdio.h>

enum { HEADS = 2, TOKENS = 16, DIM = 8, BUCKETS = 32, NUMBERS = HEADS * TOKENS * DIM };

static float query[NUMBERS], key[NUMBERS], value[NUMBERS], out[NUMBERS], dout[NUMBERS];
static float softmax[HEADS * TOKENS * 2], table[BUCKETS * HEADS], dtable[BUCKETS * HEADS];

static relpos_tensor tensor(float* data, int rank, int64_t a, int64_t b, int64_t c, int64_t d) {
  relpos_tensor made = {0};
  int64_t shape[4];
  int64_t stride = 1;
  int n;
  shape[0] = a;
  shape[1] = b;
  shape[2] = c;
  shape[3] = d;
  made.data = data;
  made.dtype = RELPOS_FLOAT32;
  made.rank = rank;
  for (n = rank - 1; n >= 0; --n) {
    made.shape[n] = shape[n];
    made.strides[n] = stride;
    stride *= shape[n];
  }
  return made;
}

static int failed(const char* what) {
  fprintf(stderr, "%s: %s\n", what, relpos_last_error());
  return 1;
}

int main(void) {
  const relpos_tensor q = tensor(query, 4, 1, HEADS, TOKENS, DIM);
  const relpos_tensor k = tensor(key, 4, 1, HEADS, TOKENS, DIM);
  const relpos_tensor v = tensor(value, 4, 1, HEADS, TOKENS, DIM);
  const relpos_tensor o = tensor(out, 4, 1, HEADS, TOKENS, DIM);
  const relpos_tensor d = tensor(dout, 4, 1, HEADS, TOKENS, DIM);
  const relpos_tensor s = tensor(softmax, 4, 1, HEADS, TOKENS, 2);
  const relpos_tensor t = tensor(table, 2, BUCKETS, HEADS, 0, 0);
  const relpos_tensor dt = tensor(dtable, 2, BUCKETS, HEADS, 0, 0);
  const relpos_tensor* dparameters[1];
  relpos_gradients gradients = {0};
  relpos_parameter parameter;
  const int64_t yes = 1;
  relpos_call* call;
  int n;

  for (n = 0; n < NUMBERS; ++n) {
    query[n] = (float)(n % 7) / 7;
    key[n] = (float)(n % 5) / 5;
    value[n] = (float)(n % 3);
    dout[n] = (float)(n % 2);
  }
  for (n = 0; n < BUCKETS * HEADS; ++n) table[n] = (float)n / 64;

  call = relpos_call_new("t5(heads=2)");
  if (call == NULL) return failed("position");
  if (relpos_call_parameter(call, 0, &parameter)) return failed("parameter");
  if (relpos_call_set_tensor(call, parameter.name, &t)) return failed("table");
  if (relpos_call_set_ints(call, "is_causal", &yes, 1)) return failed("is_causal");
  if (relpos_forward(call, &q, &k, &v, &o, NULL, &s)) return failed("forward");

  dparameters[0] = &dt;
  gradients.out = &o;
  gradients.softmax = &s;
  gradients.dout = &d;
  gradients.dparameters = dparameters;
  if (relpos_backward(call, &q, &k, &v, &gradients)) return failed("backward");

  printf("relpos %s: %s [%d, %d]\n", relpos_version(), parameter.name, (int)parameter.shape[0],
         (int)parameter.shape[1]);
  printf("last output %.6f, gradient of the bias at distance 0: %.6f\n", out[NUMBERS - 1],
         dtable[0]);
  relpos_call_free(call);
  return 0;
}
