"""payments: a Stripe-compatible API that never charges twice, built on oncekey's public names."""
