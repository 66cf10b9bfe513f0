/* relpos for C99: attention with relative positions, forward and backward.
 *
 * Layout: query [B, H, Lq, D], key [B, Hk, Lk, D], value [B, Hk, Lk, Dv], out [B, H, Lq, Dv].
 * Functions that return int give RELPOS_OK or a status; relpos_last_error() then says, of this
 * thread, which argument, what was expected and what came. docs/c.md says what stays as it is.
 */
#ifndef RELPOS_H
#define RELPOS_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define RELPOS_API __attribute__((visibility("default")))
#else
#define RELPOS_API
#endif

enum relpos_status {
  RELPOS_OK = 0,
  RELPOS_ERROR_VALUE = 1,
  RELPOS_ERROR_TYPE = 2,
  RELPOS_ERROR_IO = 3,
  RELPOS_ERROR_MEMORY = 4,
  RELPOS_ERROR_OTHER = 5
};

enum relpos_dtype {
  RELPOS_FLOAT32 = 0,
  RELPOS_FLOAT64 = 1,
  RELPOS_BFLOAT16 = 2,
  RELPOS_FLOAT16 = 3,
  RELPOS_INT64 = 4,
  RELPOS_INT32 = 5,
  RELPOS_BOOL = 6,
  RELPOS_UINT8 = 7
};

enum { RELPOS_MAX_RANK = 6 };

/* Memory of the caller. Strides count elements, may be zero or negative. A pointer to a tensor may be
 * NULL where it says so. The memory of inputs is never written to. */
typedef struct relpos_tensor {
  void* data;
  int32_t dtype; /* enum relpos_dtype */
  int32_t rank;
  int64_t shape[RELPOS_MAX_RANK];
  int64_t strides[RELPOS_MAX_RANK];
} relpos_tensor;

/* A parameter of a position, or an input of each call. Sizes of an input that the call decides are
 * negative. The texts live as long as the call. */
typedef struct relpos_parameter {
  const char* name; /* "t5.relative_attention_bias.weight" */
  const char* doc;
  int32_t given; /* 0: follows from the options, and is never asked for */
  int32_t rank;
  int64_t shape[RELPOS_MAX_RANK];
} relpos_parameter;

/* A position with its tensors, and the options of a call. Not for two threads at a time. */
typedef struct relpos_call relpos_call;

RELPOS_API const char* relpos_version(void);
/* What the last function of this thread that failed had to say; valid until the next that fails. */
RELPOS_API const char* relpos_last_error(void);
/* The name of scheme n, in order, and one line about it; NULL after the last. `summary` may be NULL. */
RELPOS_API const char* relpos_scheme(size_t n, const char** summary);

/* `position`: "t5(heads=8)", "alibi(heads=8)+shaw(...)", or "" for none. NULL where it fails. */
RELPOS_API relpos_call* relpos_call_new(const char* position);
RELPOS_API void relpos_call_free(relpos_call* call); /* NULL is fine */
/* Parameter n of the position; RELPOS_ERROR_VALUE after the last. */
RELPOS_API int relpos_call_parameter(const relpos_call* call, size_t n, relpos_parameter* found);

/* Options by the names of docs/c.md. A bool is one number, 0 or 1; a pair is two. A tensor of integers
 * (q_offsets, q_positions, seed) may be set by its numbers, which are copied. */
RELPOS_API int relpos_call_set_ints(relpos_call* call, const char* name, const int64_t* values,
                                    size_t count);
RELPOS_API int relpos_call_set_real(relpos_call* call, const char* name, double value);
/* An option, or a parameter by its name. The memory must stay until the call is freed. */
RELPOS_API int relpos_call_set_tensor(relpos_call* call, const char* name,
                                      const relpos_tensor* tensor);

/* lse [B, H, Lq] and softmax [B, H, Lq, 2], which the backward pass reads, may be NULL. */
RELPOS_API int relpos_forward(const relpos_call* call, const relpos_tensor* query,
                              const relpos_tensor* key, const relpos_tensor* value,
                              const relpos_tensor* out, const relpos_tensor* lse,
                              const relpos_tensor* softmax);

/* Inputs and outputs of the backward pass. dlse and each gradient may be NULL; `dparameters` is NULL,
 * or has an entry, which may be NULL, for each parameter of the position. */
typedef struct relpos_gradients {
  const relpos_tensor *out, *softmax, *dout, *dlse;
  const relpos_tensor *dquery, *dkey, *dvalue, *dmask;
  const relpos_tensor* const* dparameters;
} relpos_gradients;

RELPOS_API int relpos_backward(const relpos_call* call, const relpos_tensor* query,
                               const relpos_tensor* key, const relpos_tensor* value,
                               const relpos_gradients* gradients);

/* The dense form of a position of one scheme: which is "key" (the bias [H, Lq, Lk], or rows) or
 * "value"; queries at q_offset + i, keys at j. The sizes are those of the last two axes of a bias. */
RELPOS_API int relpos_dense(const relpos_call* call, const char* which, int64_t q_offset,
                            int64_t queries, int64_t keys, const relpos_tensor* out);

#ifdef __cplusplus
}
#endif

#endif
