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

# Plain sums serve up to a size of observations at which no sum can overflow, whatever their signs.
# Beyond, a sum that is not finite is computed again with factors 2^-70 times as large: the product
# of two floats is then below 2^116, which leaves room for 4,096 of them and for their signs.
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

# Two sums at a time: one alone waits for each addition to end.
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
