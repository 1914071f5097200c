"""`manage.py oncekey_migrate`: bring the store that the settings name to this release."""

from __future__ import annotations

from contextlib import closing
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from oncekey._core.op import run
from oncekey.errors import OncekeyError
from oncekey.web.django._claim import views


class Command(BaseCommand):  # type: ignore[misc]  # Django has no types
    help = "Make, or bring up to date, the tables of the store that settings.ONCEKEY names."

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            store = views().runtime.store
            with closing(store.connect()) as connection:
                run(store.migrate(), connection.ask)
        except OncekeyError as error:
            raise CommandError(str(error)) from error
        self.stdout.write(f"The {store.name} store is ready.")
