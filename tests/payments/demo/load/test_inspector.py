"""The crowd's oracle has teeth: what must not be is found, by whichever side it is seen."""

from contextlib import closing
from pathlib import Path

import pytest

from payments import clock
from payments.demo.load.inspector import Inspector
from payments.money import ledger
from payments.network import Authorised
from payments.settings import Settings
from payments.storage import ids
from payments.storage.database import Database
from payments.storage.tables import charges
from tests.payments.card_network import CardNetwork

TENANT = "acct_1/test"


def insert_charge(database: Database, network: CardNetwork, purchase: str) -> str:
    """A charge that both sides know."""
    charge = ids.new("ch")
    with network.client() as client:
        held = client.authorise(
            key=charge,
            card="4242424242424242",
            amount=500,
            currency="usd",
            reference=charge,
            capture=True,
        )
    assert isinstance(held, Authorised)
    with database.begin() as connection:
        connection.execute(
            charges.insert().values(
                tenant=TENANT,
                id=charge,
                created=clock.now_s(),
                amount=500,
                currency="usd",
                status="succeeded",
                capture=True,
                captured=True,
                network_key=charge,
                authorisation=held.id,
                description=purchase,
            )
        )
        ledger.post(connection, TENANT, "charge", charge, 500, "usd")
    return charge


@pytest.mark.slow
def test_double_charges_and_lost_ones_are_found(tmp_path: Path) -> None:
    with CardNetwork(tmp_path) as network, closing(Database(Settings(data=tmp_path))) as database:
        database.create_tables()

        def inspect(*charges: str) -> tuple[int, int]:
            """Charges, and differences, after what somebody was told."""
            inspector = Inspector(network.url, database)
            for charge in charges:
                inspector.add_acknowledged(charge)
            inspector.finish()
            inspector.start()
            inspector.join(60)
            assert not inspector.is_alive()
            return inspector.charges, inspector.differences

        first = insert_charge(database, network, "purchase 1")
        assert inspect(first) == (1, 0)
        assert inspect(first, "ch_never") == (1, 1), "told, and never charged"
        insert_charge(database, network, "purchase 1")
        assert inspect(first) == (2, 1), "one purchase, charged twice"
