"""Orders with Django: signed in, validated, and only then safe to retry.

python -m examples.django_orders.manage oncekey_migrate
python -m examples.django_orders.manage runserver
"""
