"""The text of an exported C file, to be filled in by `c.source`."""

HEAD = """\
/* A sparse {kind} policy, {sizes}: {links} links, {form}.
 *
 *     void {name}_act(const float *obs, float *action);
 *
 * obs: {obs_dim} floats. action: {action_dim} floats in [-1, 1], whatever obs holds. Units saturate
 * at the largest float; one whose sum is not a number, since an observation is not, counts as 0.
 * Reentrant, no allocation.{scaling}
 *
 * Compile: cc -std=c99 -O2 -c {name}.c
 * Constant data: {data} bytes. Stack: about {stack} bytes.{quantised}
 */
#include <stdint.h>

void {name}_act(const float *obs, float *action);
"""

SCALING = """
 *
 *     void {name}_scale(const float *action, float *scaled);
 *
 * takes actions from [-1, 1] to the bounds of the task."""

QUANTISED = """
 * Weights are 8-bit integers with one scale per unit; biases and activations are float."""

RELU = """
/* max(x, 0) without a branch, which half of the units would mispredict: a negative number has its
 * first bit set. */
static float {name}_relu(float x)
{{
    union {{ float value; uint32_t bits; }} u;
    u.value = x;
    u.bits &= (u.bits >> 31) - 1u;
    return u.value;
}}
"""

# Plain sums are used for observations too small to cause overflow. For larger ones, a sum that is
# not finite is recomputed with both factors scaled by 2^-70: the product of two floats is then
# below 2^116, which leaves room for the sum of 4,096 of them.
SATURATE = """
/* What 2^140 x is as a float: the largest where it is larger, 0 where x is not a number. */
static float {name}_saturated(float x)
{{
    if (x >= 0x1p-12f) return 0x1.fffffep127f;
    if (x <= -0x1p-12f) return -0x1.fffffep127f;
    return x == x ? x * 0x1p70f * 0x1p70f : 0.0f;
}}

/* Whether x is infinite or not a number: all bits of its exponent are set. */
static int {name}_overflowed(float x)
{{
    union {{ float value; uint32_t bits; }} u;
    u.value = x;
    return (u.bits & 0x7f800000u) == 0x7f800000u;
}}
"""

CLAMP = """
/* x as a finite number: infinities become the largest float, 0 where x is not a number. */
static float {name}_clamped(float x)
{{
    if (x > 0x1.fffffep127f) return 0x1.fffffep127f;
    if (x < -0x1.fffffep127f) return -0x1.fffffep127f;
    return x == x ? x : 0.0f;
}}
"""

# With x scaled by 2^-80, squared differences are below 2^98, which leaves room for 2^24 units; a
# variance is then either 0 or well above the smallest normal float.
NORM = """
/* 1 / sqrt(x) for normal floats: a guess from the exponent, then Newton's method. */
static float {name}_rsqrt(float x)
{{
    union {{ float value; uint32_t bits; }} u;
    uint32_t k;
    u.value = x;
    u.bits = 0x5f375a86u - (u.bits >> 1);
    for (k = 0; k < 4; k++) u.value *= 1.5f - 0.5f * x * u.value * u.value;
    return u.value;
}}

/* y = (x - mean) / sqrt(variance + epsilon) * gain + shift over n units; y may be x. */
static void {name}_layer_norm(const float *x, float *y, uint32_t n, const float *gain,
                              const float *shift, float epsilon)
{{
    float a = 0.0f, b = 0.0f, c = 0.0f, d = 0.0f, mean, factor;
    uint32_t r;
    for (r = 0; r + 3 < n; r += 4) {{
        a += x[r];
        b += x[r + 1];
        c += x[r + 2];
        d += x[r + 3];
    }}
    for (; r < n; r++) a += x[r];
    mean = ((a + b) + (c + d)) / (float)n;
    a = b = c = d = 0.0f;
    for (r = 0; r + 3 < n; r += 4) {{
        a += (x[r] - mean) * (x[r] - mean);
        b += (x[r + 1] - mean) * (x[r + 1] - mean);
        c += (x[r + 2] - mean) * (x[r + 2] - mean);
        d += (x[r + 3] - mean) * (x[r + 3] - mean);
    }}
    for (; r < n; r++) a += (x[r] - mean) * (x[r] - mean);
    factor = {name}_rsqrt(((a + b) + (c + d)) / (float)n + epsilon);
    for (r = 0; r < n; r++) y[r] = (x[r] - mean) * factor * gain[r] + shift[r];
}}

/* The same for every finite x: large ones are scaled down, which makes epsilon negligible. */
static void {name}_layer_norm_watched(const float *x, float *y, uint32_t n, const float *gain,
                                      const float *shift, float epsilon)
{{
    uint32_t r, large = 0;
    for (r = 0; r < n; r++) large |= (x[r] > 0x1p50f) | (x[r] < -0x1p50f);
    if (large) {{
        for (r = 0; r < n; r++) y[r] = x[r] * 0x1p-80f;
        {name}_layer_norm(y, y, n, gain, shift, 0x1p-126f);
    }} else {name}_layer_norm(x, y, n, gain, shift, epsilon);
    for (r = 0; r < n; r++) y[r] = {name}_clamped(y[r]);
}}
"""

TANH = """
/* tanh to 2e-7: with t = tanh(x/2) as a continued fraction, tanh(x) = 2t / (1 + t^2). */
static float {name}_tanh(float x)
{{
    const float h = 0.5f * x, y = h * h;
    float t;
    if (x > 9.0f) return 1.0f;
    if (x < -9.0f) return -1.0f;
    t = h * (135135.0f + y * (17325.0f + y * (378.0f + y)))
        / (135135.0f + y * (62370.0f + y * (3150.0f + y * 28.0f)));
    return 2.0f * t / (1.0f + t * t);
}}
"""

ACT = """
/* For observations too small for any sum to overflow. */
static void {name}_plain(const float *obs, float *action)
{{
{units}    uint32_t r, k;
{plain}}}

/* For all others: a sum that overflows is computed again. */
static void {name}_watched(const float *obs, float *action)
{{
{units}    uint32_t r, k;
{watched}}}

void {name}_act(const float *obs, float *action)
{{
    uint32_t r, small = 1;
    for (r = 0; r < {obs_dim}; r++) small &= (obs[r] >= -{most}) & (obs[r] <= {most});
    if (small) {name}_plain(obs, action);
    else {name}_watched(obs, action);
}}
"""

# Nonlinear operations: `plain`, and `watched` with always finite results.
LOAD = """\
    for (r = 0; r < {n}; r++) {y}[r] = {x}[r];
"""

LOAD_WATCHED = """\
    for (r = 0; r < {n}; r++) {y}[r] = {name}_clamped({x}[r]);
"""

RECTIFY = """\
    for (r = 0; r < {n}; r++) {y}[r] = {name}_relu({x}[r]);
"""

NORMALIZE = """\
    for (r = 0; r < {n}; r++) {y}[r] = ({x}[r] - {name}_mean{i}[r]) * {name}_rstd{i}[r];
"""

# The difference of two floats may overflow, the difference of their halves does not.
NORMALIZE_WATCHED = """\
    for (r = 0; r < {n}; r++) {{
        const float half = 0.5f * {x}[r] - 0.5f * {name}_mean{i}[r];
        {y}[r] = {name}_clamped(2.0f * (half * {name}_rstd{i}[r]));
    }}
"""

ADD = """\
    for (r = 0; r < {n}; r++) {y}[r] = {x}[r] + {other}[r];
"""

ADD_WATCHED = """\
    for (r = 0; r < {n}; r++) {y}[r] = {name}_clamped({x}[r] + {other}[r]);
"""

LAYER_NORM = """\
    {name}_layer_norm({x}, {y}, {n}, {name}_gain{i}, {name}_shift{i}, {epsilon});
"""

LAYER_NORM_WATCHED = """\
    {name}_layer_norm_watched({x}, {y}, {n}, {name}_gain{i}, {name}_shift{i}, {epsilon});
"""

LAYER = """\
    {{ /* {inputs} -> {outputs} */
        const {index} *c = {name}_cols{i};
        const {weight} *w = {name}_values{i};
        for (r = 0; r < {outputs}; r++) {{
            float sum = {start};
{loop}{rescale}{again}
            {y}[r] = {activation};
        }}
    }}
"""

SHORT_ROWS = """\
            for (k = {name}_links{i}[r]; k > 0; k--) sum += {cast}*w++ * {x}[*c++];"""

# Two partial sums hide the latency of additions.
LONG_ROWS = """\
            float odd = 0.0f;
            for (k = {name}_links{i}[r]; k > 1; k -= 2) {{
                sum += {cast}w[0] * {x}[c[0]];
                odd += {cast}w[1] * {x}[c[1]];
                w += 2;
                c += 2;
            }}
            if (k > 0) sum += {cast}*w++ * {x}[*c++];
            sum += odd;"""

SCALE = """
void {name}_scale(const float *action, float *scaled);
void {name}_scale(const float *action, float *scaled)
{{
    uint32_t r;
    for (r = 0; r < {action_dim}; r++)
        scaled[r] = {name}_centre[r] + {name}_half[r] * action[r];
}}
"""

AGAIN = """
            if ({name}_overflowed(sum)) {{
                sum = {small_start};
                for (k = {name}_links{i}[r]; k > 0; k--)
                    sum += {cast}*(w - k) * 0x1p-70f * ({x}[*(c - k)] * 0x1p-70f);
                sum = {name}_saturated(sum{small_rescale});
            }}"""
