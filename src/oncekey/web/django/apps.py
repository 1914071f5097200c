"""The application that `INSTALLED_APPS` names: it brings the system check and the command."""

from __future__ import annotations

from django.apps import AppConfig
from django.core.checks import register

from oncekey.web.django.settings import check


class OncekeyConfig(AppConfig):  # type: ignore[misc]  # Django has no types
    name = "oncekey.web.django"
    label = "oncekey"
    verbose_name = "oncekey"

    def ready(self) -> None:
        register(check)
