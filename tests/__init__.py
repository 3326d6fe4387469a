"""The test suite: unit, contract, integration, fault and e2e, with fixtures and support beside them."""
