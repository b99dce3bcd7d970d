"""Newton's method with a carried Hessian, on functions whose minima are known."""

import numpy as np
import pytest

from tvbo.fit.quadratic_model import QuadraticModel

WIDE = [(-9.0, 9.0)] * 2


def rosenbrock(x):
    value = (1 - x[0]) ** 2 + 10 * (x[1] - x[0] ** 2) ** 2
    inner = x[1] - x[0] ** 2
    return value, np.array([-2 * (1 - x[0]) - 40 * x[0] * inner, 20 * inner])


def test_hessian_by_differences():
    model = QuadraticModel.by_differences(rosenbrock, WIDE, np.ones(2))
    np.testing.assert_allclose(model.hessian, [[82.0, -40.0], [-40.0, 20.0]], rtol=1e-2, atol=0.1)


@pytest.mark.parametrize("start", [(1.1, 1.0), (0.5, 0.5), (0.0, 1.0)])
def test_minimum_from_nearby_also_where_the_function_is_not_convex(start):
    start = np.array(start)
    found = QuadraticModel.by_differences(rosenbrock, WIDE, start).minimize(rosenbrock, WIDE, start)
    np.testing.assert_allclose(found, [1.0, 1.0], atol=1e-3)


def test_a_bound_holds_the_parameter_that_would_go_beyond():
    bounds = [(-9.0, 0.5), (-9.0, 9.0)]
    start = np.array([0.5, 0.0])
    found = QuadraticModel.by_differences(rosenbrock, bounds, start).minimize(
        rosenbrock, bounds, start
    )
    np.testing.assert_allclose(found, [0.5, 0.25], atol=1e-3)


def test_steps_that_do_not_go_down_are_given_up():
    model = QuadraticModel(np.eye(1), held=np.array([False]))
    assert model.minimize(lambda x: (x @ x, -2 * x), [(-9.0, 9.0)], np.array([1.0])) is None


def test_a_parameter_let_go_is_beyond_the_model():
    """Held at its end where the model was made, it would move elsewhere."""
    bounds = [(0.0, 9.0)]
    start = np.zeros(1)
    model = QuadraticModel.by_differences(lambda x: (x[0], np.ones(1)), bounds, start)
    assert model.held.tolist() == [True]
    assert model.minimize(lambda x: ((x[0] - 1) ** 2, 2 * (x - 1)), bounds, start) is None


def test_a_flat_region_is_no_minimum():
    """Next to no slope and next to no curvature, far from the minimum: a noise close to zero."""

    def function(x):
        noise = np.exp(x[0])
        return (noise - 0.3) ** 2, np.array([2 * (noise - 0.3) * noise])

    start = np.array([-14.0])
    found = QuadraticModel.by_differences(function, [(-15.0, 3.0)], start).minimize(
        function, [(-15.0, 3.0)], start
    )
    np.testing.assert_allclose(np.exp(found), [0.3], rtol=1e-3)


def test_nothing_to_minimize():
    empty = np.empty(0)
    model = QuadraticModel.by_differences(lambda x: (1.0, empty), [], empty)
    assert model.minimize(lambda x: (1.0, empty), [], empty).shape == (0,)


def test_a_function_without_curvature_or_value_has_no_model():
    start, bounds = np.zeros(1), [(-1.0, 1.0)]
    assert QuadraticModel.by_differences(lambda x: (0.0, np.zeros(1)), bounds, start) is None
    assert QuadraticModel.by_differences(lambda x: (np.inf, x + np.nan), bounds, start) is None
