"""Amounts of money: whole numbers of a currency's smallest unit; and the known currencies."""

from __future__ import annotations

AMOUNT_MAX = 99_999_999

_ZERO_DECIMAL = "bif clp djf gnf jpy kmf krw mga pyg rwf vnd vuv xaf xof xpf"
_THREE_DECIMAL = "bhd jod kwd omr tnd"
_TWO_DECIMAL = """
    aed afn all amd ang aoa ars aud awg azn bam bbd bdt bgn bmd bnd bob brl bsd bwp byn bzd cad cdf
    chf cny cop crc cve czk dkk dop dzd egp etb eur fjd fkp gbp gel gip gmd gtq gyd hkd hnl htg huf
    idr ils inr isk jmd kes kgs khr kyd kzt lak lbp lkr lrd lsl mad mdl mkd mmk mnt mop mur mvr mwk
    mxn myr mzn nad ngn nio nok npr nzd pab pen pgk php pkr pln qar ron rsd rub sar sbd scr sek sgd
    shp sle sos srd std szl thb tjs top try ttd twd tzs uah ugx usd uyu uzs wst xcd yer zar zmw
"""
ZERO_DECIMAL = frozenset(_ZERO_DECIMAL.split())
"""Currencies without a smaller unit."""
THREE_DECIMAL = frozenset(_THREE_DECIMAL.split())
"""Currencies with three decimals."""
CURRENCIES = ZERO_DECIMAL | THREE_DECIMAL | frozenset(_TWO_DECIMAL.split())
"""ISO 4217 in lower case, as Stripe writes it."""

STEP = dict.fromkeys(THREE_DECIMAL, 10) | {"isk": 100, "ugx": 100}
"""What an amount must be a multiple of, if not 1. Card networks accept no third decimal, and no
decimals of some currencies that Stripe still writes with two.
"""

MINIMUM = {"usd": 50, "eur": 50, "gbp": 30, "jpy": 50}
"""The smallest charge; 1 for other currencies."""


def format_amount(amount: int, currency: str) -> str:
    """Write an amount for people, with the currency's code: `20.00 EUR`."""
    digits = 0 if currency in ZERO_DECIMAL else 3 if currency in THREE_DECIMAL else 2
    if not digits:
        return f"{amount} {currency.upper()}"
    whole, rest = divmod(abs(amount), 10**digits)
    return f"{'-' * (amount < 0)}{whole}.{rest:0{digits}} {currency.upper()}"
