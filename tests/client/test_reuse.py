from oncekey._core.fingerprint import Fingerprint
from oncekey.client._reuse import Reuse

ONE, OTHER = Fingerprint(1, b"1"), Fingerprint(1, b"2")


def test_only_another_request_with_the_same_key_at_the_same_place_is_a_reuse() -> None:
    reuse = Reuse()

    assert not reuse.differs("https://a:443", "k", ONE)
    assert not reuse.differs("https://a:443", "k", ONE)
    assert not reuse.differs("https://b:443", "k", OTHER)
    assert reuse.differs("https://a:443", "k", OTHER)


def test_memory_is_bounded_and_forgets_the_oldest() -> None:
    reuse = Reuse(keys_max=2)
    for key in "abc":
        reuse.differs("o", key, ONE)

    assert not reuse.differs("o", "a", OTHER)
    assert reuse.differs("o", "c", OTHER)
