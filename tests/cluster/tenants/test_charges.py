"""Charges of all routers: whatever is lost, doubled or late, the sum is what was charged."""

from hypothesis import given
from hypothesis import strategies as st

from cluster.tenants.charges import Charges


@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(1, 9), st.booleans(), st.booleans())))
def test_readings_that_are_lost_or_come_twice_change_nothing(charges):
    published, heard = Charges(), Charges()
    heard.receive({"r": published.publish()})
    total, counted = {"a": 0.0, "b": 0.0}, {"a": 0.0, "b": 0.0}

    def read():
        for tenant, amount in heard.receive({"r": published.publish()}).items():
            counted[tenant] += amount

    for tenant, amount, read_now, read_twice in charges:
        published.add(tenant, amount)
        total[tenant] += amount
        for _ in range(read_now + read_twice):
            read()
    read()
    assert counted == total


def test_a_router_counts_from_when_it_is_first_heard_and_anew_when_it_began_anew():
    heard = Charges()
    assert heard.receive({"r": {"a": 100.0}}) == {}
    assert heard.receive({"r": {"a": 130.0}, "s": {"a": 50.0}}) == {"a": 30.0}
    assert heard.receive({"r": {"a": 20.0}, "s": {"a": 51.0}}) == {"a": 21.0}
    assert heard.receive({}) == {}
    assert heard.receive({"s": {"a": 60.0}}) == {}


def test_totals_that_no_longer_grow_are_forgotten_and_begin_again():
    published, heard = Charges(), Charges()
    heard.receive({"r": published.publish()})
    published.add("a", 7)
    assert heard.receive({"r": published.publish()}) == {"a": 7}
    for _ in range(1300):
        last = published.publish()
    assert last == {} and heard.receive({"r": last}) == {}
    published.add("a", 8)
    assert heard.receive({"r": published.publish()}) == {"a": 8}
