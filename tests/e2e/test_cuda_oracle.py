# SPDX-License-Identifier: Apache-2.0
"""Why Icebox exists: what the stock shim cannot do with a CUDA container, and what it can without one."""

import pytest
from harness import gpu
from harness.container import Container
from harness.node import STOCK

IMAGE = "icebox.local/samples:e2e"

pytestmark = pytest.mark.both_cgroups


@pytest.fixture
def stock_container(node):
    node.known_leaks += ["tmp/ctrd-checkpoint*", "run/s/*"]
    return lambda: Container(node, node.unique("stock"), STOCK)


def test_stock_shim_fails_at_the_device(node, stock_container):
    box = stock_container()
    box.run(IMAGE, "sample-counter", flags=gpu.FLAGS)
    with gpu.counter(box) as counter:
        before = counter.ask()
        assert gpu.device_holders([box.pid]) == [box.pid]
        failed = box.checkpoint("checkpoint:stock", check=False)
        assert failed.code != 0 and "criu failed" in failed.text
        assert "(chr 10:237)" in box.checkpoint_log()
        after = counter.ask()
    assert after.token == before.token


def test_stock_shim_succeeds_without_the_device(node, stock_container):
    """The same program and driver, but a device node that CRIU knows: so it is the device that makes the difference."""
    box = stock_container()
    box.run(IMAGE, "sample-counter", flags=(*gpu.FLAGS, "--env", "ICEBOX_SIM_DEVICE=/dev/null"))
    with gpu.counter(box) as counter:
        before = counter.ask()
    box.checkpoint("checkpoint:stock-without")
    box.stop()
    box.remove()
    again = stock_container()
    again.restore_from("checkpoint:stock-without")
    with gpu.counter(again) as counter:
        after = counter.ask()
    assert after.token == before.token
    assert before.counter < after.counter <= before.counter + counter.sent
