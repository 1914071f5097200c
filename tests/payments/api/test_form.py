import pytest

from payments.api.form import PAIRS_MAX, FormError, parse


@pytest.mark.parametrize(
    ("encoded", "said"),
    [
        (b"", {}),
        (b"amount=2000&currency=eur", {"amount": "2000", "currency": "eur"}),
        (b"metadata[a]=b&metadata[c+d]=%C3%A9", {"metadata": {"a": "b", "c d": "é"}}),
        (b"metadata%5Ba%5D=b", {"metadata": {"a": "b"}}),
        (b"expand[]=a&expand[]=b", {"expand": ["a", "b"]}),
        (b"types[0]=card&types[1]=link", {"types": ["card", "link"]}),
        (b"items[0][price]=p&items[0][tax][0]=t", {"items": [{"price": "p", "tax": ["t"]}]}),
        (b"description=", {"description": ""}),
        (b"metadata[0]=zero&metadata[1]=one", {"metadata": {"0": "zero", "1": "one"}}),
        (b"a[0][metadata][0]=x", {"a": [{"metadata": {"0": "x"}}]}),
        (b"metadata[7]=x&metadata[a]=y", {"metadata": {"7": "x", "a": "y"}}),
    ],
)
def test_brackets_become_nested_values(encoded: bytes, said: object) -> None:
    assert parse(encoded) == said


@pytest.mark.parametrize(
    ("encoded", "param"),
    [
        (b"amount=1&amount=2", "amount"),
        (b"a=1&a[b]=2", "a"),
        (b"a[b]=1&a=2", "a"),
        (b"a[b]=1&a[b][c]=2", "a"),
        (b"a[b=1", "a[b"),
        (b"[a]=1", "[a]"),
        (b"a[b][c][d][e][f][g]=1", "a[b][c][d][e][f][g]"),
        (b"amount", None),
        (b"a=%FF", None),
        (b"a=\xff", None),
        (b"&".join(b"a%d=1" % number for number in range(PAIRS_MAX + 1)), None),
    ],
)
def test_what_cannot_be_meant_is_refused_by_its_name(encoded: bytes, param: str | None) -> None:
    with pytest.raises(FormError) as refused:
        parse(encoded)
    assert refused.value.param == param
