import pytest


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """As a demo does: small matrices on many threads are slow."""
    from threadpoolctl import threadpool_limits

    with threadpool_limits(1):
        yield


@pytest.fixture(scope="module")
def results():
    """Numbers by figure, so that each is computed once."""
    return {}
