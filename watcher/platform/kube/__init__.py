"""What we need of the Kubernetes API, and no more: who we are to it, lists, watches, and a copy that keeps itself true.

A client library would bring every type of the API and none of what is hard: a watch that ends without a word, a list
that expires half read, objects that went while nobody looked. So the types here are cut down to what is used
(`objects`, on the common `shapes`), and the hard part is ours (`informer`, and `sharing` for all who want the same).
`credentials` finds out who we are, `client` asks, `answers` reads what comes back, `errors` says what a refusal means
for the operator, `quantity` reads Kubernetes' numbers. What changes anything is in `eviction` and `changes`, what tells
of it in `events`; `leases` says which of several replicas may.
"""
