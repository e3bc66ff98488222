"""The engine that model-caller and tool-executor share: requests in, results out, nothing run twice.

Words: a *request* is a record of model-requests or tool-requests; a *call* is a request being worked on in
this process; a *claim* is the right to execute a non_idempotent call, held once its started bit and its
Started record are both acknowledged; a *suspect* is a request that an earlier owner may have executed;
*done* means that the result is durable; the *base* is the first request not done.

``engine`` drives everything from one thread, step by step; ``partition`` keeps what is known of one
partition; ``assignment`` takes partitions over; ``intake`` reads requests; ``claims`` commits; ``running``
watches calls; ``results`` writes what they answer; ``flow`` bounds how far is read.
"""
