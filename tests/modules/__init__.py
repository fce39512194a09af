"""Go modules from which the tests build programs of other projects; `scripts/go-programs` builds them."""
