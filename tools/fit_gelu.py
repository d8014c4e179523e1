"""Fits the polynomials of csrc/include/diglot/gelu_*.cuh and triton_ops/lib/gelu_*.py.

``python tools/fit_gelu.py`` prints every coefficient table and split constant of these files in
about a minute. It needs mpmath only. Beside each table stands the error that it reaches before the
evaluation itself rounds.

Every fit is a weighted minimax one, found by the exchange algorithm of Remez on a grid of
Chebyshev nodes, in 60-digit arithmetic. Coefficients are rounded to the working format one by
one, and the free ones are fitted again after each rounding. They absorb most of the error that
rounding the finished fit would leave in place. The best order depends on the table, so several
are tried.

Notation, with t = |x|, Phi the normal distribution function, c = 1/sqrt(2 pi):

erf form      h(t) = exp(t^2/2) Phi(-t), the scaled lower tail, is fitted as s H with
              s = 1/(a + b t).
              gelu'(-t) = exp(-t^2/2) (h(t) - c t) has one root on t > 0, ROOT_ERF.
              It is fitted as exp(-t^2/2) r G with r proportional to ROOT_ERF - t.
              H and G are polynomials in a variable that a reciprocal of 1 + p t gives.
tanh form     z(t) = 2 sqrt(2/pi) (t + 0.044715 t^3), E = exp(-z).
              gelu'(-t) = E (1 + E - t z'(t)) / (1 + E)^2 has one root, ROOT_TANH.
              It is fitted as (ROOT_TANH - t) Q for t < 1.2 (1.5 in fp64), where Q is a
              polynomial in t or ROOT_TANH - t.
              Beyond, in fp32, it is fitted as E (numerator) C(E), where C is near (1 + E)^-2.
both forms    W(f) = (2^f - 1 - l f) / f^2 on [-1/2, 1/2], l = log(2) in the working format.

Where 1 is subtracted from a target, the evaluation adds it exactly, and the rest is rounded less.
"""

import mpmath as mp

mp.mp.dps = 60

C_NORMAL = 1 / mp.sqrt(2 * mp.pi)
BETA = 2 * mp.sqrt(2 / mp.pi)
KAPPA = mp.mpf("0.044715")
LOG2_E = 1 / mp.log(2)


def scaled_tail(t):
    return mp.erfc(t / mp.sqrt(2)) / 2 * mp.exp(t * t / 2)


def tanh_exponent(t):
    return BETA * (t + KAPPA * t**3)


def tanh_exponent_slope(t):
    return BETA * (1 + 3 * KAPPA * t**2)


def tanh_numerator(t):
    return 1 + mp.exp(-tanh_exponent(t)) - t * tanh_exponent_slope(t)


ROOT_ERF = mp.findroot(lambda t: scaled_tail(t) - C_NORMAL * t, mp.mpf("0.75"))
ROOT_TANH = mp.findroot(tanh_numerator, mp.mpf("0.75"))


def target_h(a, b):
    return lambda t: (a + b * t) * scaled_tail(t)


def target_g(scale):
    """For r = scale (ROOT_ERF - t)."""
    return lambda t: (scaled_tail(t) - C_NORMAL * t) / (ROOT_ERF - t) / scale


def for_rounded_exponent(target):
    """The target where exp(-t^2/2) is 2^(-t^2 c) with log2(e)/2 rounded to a float c."""
    change = round_to_bits(LOG2_E / 2, 24) * mp.log(2) - mp.mpf(1) / 2
    return lambda t: target(t) * mp.exp(change * t * t)


def target_q(t):
    e = mp.exp(-tanh_exponent(t))
    return e * tanh_numerator(t) / (1 + e) ** 2 / (ROOT_TANH - t)


def sensitivity(function, p):
    """Slope of log(function) over log(s), s = 1/(1 + p t): what a relative error of s does."""
    return lambda t: -mp.diff(lambda u: mp.log(function(u)), t) * (1 + p * t) / p


def target_w(f):
    return (mp.expm1(f * mp.log(2)) - round_to_bits(mp.log(2), 24) * f) / f**2


def twice(target):
    return lambda t: 2 * target(t)


def less_one(target):
    return lambda t: target(t) - 1


def relative(target):
    return lambda t: 1 / abs(target(t))


def half_relative(target):
    """Relative error, with the tail where only bfloat16 is normal weighed by its 3 fewer bits."""
    return lambda t: (1 if t < 4.5 else mp.mpf(1) / 8) / abs(target(t))


def round_to_bits(value, bits):
    """Nearest number with a significand of `bits` bits."""
    if value == 0:
        return value
    _, exponent = mp.frexp(value)
    unit = mp.ldexp(1, exponent - bits)
    return mp.nint(value / unit) * unit


def exchange(columns, values):
    """Minimax coefficients of the weighted columns for the weighted values, on the grid."""
    size, count = len(columns[0]), len(values)
    reference = [
        int(mp.nint((1 - mp.cos(mp.pi * i / size)) / 2 * (count - 1))) for i in range(size + 1)
    ]
    for _ in range(40):
        system = mp.matrix(size + 1, size + 1)
        right = mp.matrix(size + 1, 1)
        for row, point in enumerate(reference):
            for column in range(size):
                system[row, column] = columns[point][column]
            system[row, size] = (-1) ** row
            right[row] = values[point]
        solution = mp.lu_solve(system, right)[:size]
        error = [mp.fdot(columns[point], solution) - values[point] for point in range(count)]
        # One extremum for each run of equal sign, then drop the smallest until they fit.
        extrema = [0]
        for point in range(1, count):
            if (error[point] > 0) != (error[extrema[-1]] > 0):
                extrema.append(point)
            elif abs(error[point]) > abs(error[extrema[-1]]):
                extrema[-1] = point
        while len(extrema) > size + 1:
            if len(extrema) == size + 2:
                extrema.pop(0 if abs(error[extrema[0]]) < abs(error[extrema[-1]]) else -1)
            else:
                height = [abs(error[point]) for point in extrema]
                pairs = [min(height[i], height[i + 1]) for i in range(len(height) - 1)]
                smallest = pairs.index(min(pairs))
                del extrema[smallest : smallest + 2]
        if len(extrema) < size + 1 or extrema == reference:
            break
        reference = extrema
    return list(solution), max(abs(e) for e in error)


def fit(target, weight, variable, degree, interval, bits, density=24):
    """Coefficients, lowest order first, rounded to `bits` bits, and the weighted error."""
    low, high = (mp.mpf(end) for end in interval)
    count = density * (degree + 2)
    nodes = [
        low + (high - low) * (1 - mp.cos(mp.pi * (i + mp.mpf("0.5")) / count)) / 2
        for i in range(count)
    ]
    weights = [weight(t) for t in nodes]
    points = [variable(t) for t in nodes]
    powers = [[w * u**i for i in range(degree + 1)] for w, u in zip(weights, points, strict=True)]
    values = [w * target(t) for w, t in zip(weights, nodes, strict=True)]
    upward = list(range(degree + 1))
    orders = [
        upward[:head] + upward[: head - 1 : -1] if head else upward[::-1] for head in range(4)
    ]
    tables = [round_in_order(powers, values, order, bits) for order in [*orders, upward]]
    return min(tables, key=error_of)


def round_in_order(powers, values, order, bits):
    """Rounds the coefficients in the given order, fitting the free ones again after each."""
    fixed = [None] * len(order)
    free = sorted(order)
    for current in order:
        solution, _ = exchange([[row[i] for i in free] for row in powers], values)
        fixed[current] = round_to_bits(solution[free.index(current)], bits)
        values = [
            value - fixed[current] * row[current] for value, row in zip(values, powers, strict=True)
        ]
        free.remove(current)
    return fixed, max(abs(value) for value in values)


def error_of(table):
    return table[1]


def reciprocal_variable(p, center=0):
    """s = 1/(1 + p t), less a center where the rounding errors of the polynomial fade."""
    return lambda t: 1 / (1 + p * t) - center


def quotient_variable(p):
    """t s, less 1. Unlike s this has a small relative error where t is small."""
    return lambda t: t / (1 + p * t) - 1


def identity(t):
    return t


def show(name, coefficients, error, bits):
    digits = 9 if bits == 24 else 17
    print(f"{name}  (error {mp.nstr(error, 3)} = 2^{mp.nstr(mp.log(error, 2), 4)})")
    for coefficient in coefficients:
        print(f"    {mp.nstr(coefficient, digits, min_fixed=-5, max_fixed=5)},")


def show_split(name, value, head_bits, bits):
    """A constant as a short head, on which later subtractions are exact, and a rounded rest."""
    digits = 9 if bits == 24 else 17
    head = round_to_bits(value, head_bits)
    rest = round_to_bits(value - head, bits)
    print(f"{name} = {mp.nstr(head, digits)} + {mp.nstr(rest, digits)}")


def fit_half():
    h, p = target_h(1, mp.mpf("0.3")), mp.mpf("0.3")
    table = fit(h, half_relative(h), reciprocal_variable(p), 5, (0, 13.5), 24)
    show("half H, in s = 1/(1 + 0.3 t)", *table, 24)
    g, p = target_g(1), mp.mpf("0.4")
    table = fit(g, half_relative(g), reciprocal_variable(p), 4, (0, 13.5), 24)
    show("half G, in s = 1/(1 + 0.4 t)", *table, 24)


def fit_float():
    h = for_rounded_exponent(target_h(2, round_to_bits(mp.mpf("2.3"), 24)))
    v = quotient_variable(round_to_bits(mp.mpf("0.3"), 24))
    table = fit(less_one(h), relative(h), v, 10, (0, 13.5), 24)
    show("float H - 1, s = 1/(2 + 2.3 t), in t/(1 + 0.3 t) - 1", *table, 24)

    p = mp.mpf("0.25")
    g = for_rounded_exponent(target_g(mp.mpf("0.5")))
    s = reciprocal_variable(p, mp.mpf("0.625"))
    table = fit(less_one(g), relative(g), s, 9, (0, 13.7), 24)
    show("float G - 1, in s - 0.625, s = 1/(1 + 0.25 t)", *table, 24)
    # Multiplied by the error of s, this only needs a few percent.
    slope = sensitivity(g, p)
    table = fit(lambda t: LOG2_E * slope(t), lambda t: 1, reciprocal_variable(p), 1, (0, 13.7), 24)
    show("float slope of log2(G), in s", *table, 24)

    start = mp.mpf("1.2")
    q, half = twice(target_q), mp.mpf("0.5")
    table = fit(less_one(q), relative(q), lambda t: t - half, 9, (0, start), 24)
    show("float 2 Q - 1, in t - 0.5", *table, 24)
    fit_numerator(start)
    # Uneven ends: on a symmetric grid the powers are equal in pairs and the systems singular.
    table = fit(target_w, lambda f: f**2 / 2**f, identity, 4, (-0.5, 0.501), 24)
    show("float W", *table, 24)


def fit_numerator(start):
    """The tanh form's derivative in fp32 beyond its root, where it has the numerator

    log2(e)/3 (1 + E - t z'(t)) = log2(e)/3 (1 + E) - t (slope - 2/3 linear),

    slope = linear + cubic t^2 = z(t)/t log2(e), linear = BETA log2(e). There the two constants of
    slope are their heads of 16 and 24 bits. 2/3 linear is that of 16 less linear/3 rounded to
    2^-18, which happens to be near. They leave out something times t: a constant and a multiple of
    E stand for it, and the fit of C takes up some of the rest.
    """
    linear = BETA * LOG2_E
    head = round_to_bits(linear, 16)
    third = mp.ldexp(mp.nint(mp.ldexp(linear / 3, 18)), -18)
    cubic_tail = linear * KAPPA - round_to_bits(linear * KAPPA, 24)
    one = mp.ldexp(mp.nint(mp.ldexp(LOG2_E / 3, 16)), -16)

    def left_out(t):
        return -t * (linear / 3 - third + cubic_tail * t * t)

    def e_of(t):
        return mp.exp(-tanh_exponent(t))

    nodes = [start * (mp.mpf(10) / start) ** (mp.mpf(i) / 400) for i in range(401)]
    weights = [1 / abs(tanh_numerator(t)) for t in nodes]
    (constant, multiple), _ = exchange(
        [[w, w * e_of(t)] for w, t in zip(weights, nodes, strict=True)],
        [w * left_out(t) for w, t in zip(weights, nodes, strict=True)],
    )
    rest = round_to_bits(LOG2_E / 3 - one + constant, 24)
    factor = round_to_bits(LOG2_E / 3 + multiple, 24)
    print("float numerator: 2/3 linear =", mp.nstr(head - third, 12))
    print("    1, its rest and the factor of E:", *(mp.nstr(v, 9) for v in (one, rest, factor)))

    def c(scaled):
        e = mp.ldexp(scaled, -16)
        t = mp.findroot(lambda t: tanh_exponent(t) + mp.log(e), mp.mpf(2))
        numerator = LOG2_E / 3 * (tanh_numerator(t) - 1 - e) - left_out(t)
        numerator += one + rest + factor * e
        return tanh_numerator(t) / (1 + e) ** 2 / numerator / 2

    table = fit(less_one(c), relative(c), identity, 6, (0, mp.ldexp(e_of(start), 16)), 24)
    show("float C/2 - 1, in 2^16 E", *table, 24)


def fit_double():
    p = mp.mpf("0.25")
    h, s = target_h(1, p), reciprocal_variable(p)
    show("double H, in s = 1/(1 + 0.25 t)", *fit(h, relative(h), s, 20, (0, 39), 53), 53)
    g = target_g(1)
    show("double G, in s = 1/(1 + 0.25 t)", *fit(g, relative(g), s, 19, (0, 39), 53), 53)
    table = fit(target_q, relative(target_q), lambda t: ROOT_TANH - t, 19, (0, 1.5), 53)
    show("double Q, in ROOT_TANH - t", *table, 53)


def show_constants():
    for bits, head in ((24, 16), (53, 40)):
        print(f"constants of {bits} bits")
        show_split("  ROOT_ERF", ROOT_ERF, bits, bits)
        show_split("  ROOT_TANH", ROOT_TANH, bits, bits)
        show_split("  log2(e)/2", LOG2_E / 2, bits, bits)
        for name, unit in (("", mp.mpf(1)), (" log2(e)", LOG2_E)):
            show_split(f"  beta{name}", BETA * unit, head, bits)
            show_split(f"  beta kappa{name}", BETA * KAPPA * unit, bits, bits)
        show_split("  3 beta kappa", 3 * BETA * KAPPA, bits, bits)


if __name__ == "__main__":
    fit_half()
    fit_float()
    fit_double()
    show_constants()
