"""Corpora: make, read, check and audit the passages of concepts.

From the top down; a package imports only what stands below it (`lint-imports` checks it):

    folders     build, import and validate folders of corpora
    probing     sets of labelled texts and spans for linguistic probing
    hub         corpora from datasets of the Hugging Face hub
    own         concepts and texts that users bring
    audit       what a probe could read instead of the concept
    real        corpora from real-text archives         io          the published layout
    planted     the grammar                             checks      the construction rules
    inferred    documents of passages that name none    partition   which documents may be used for what
    near        near-duplicates                         text, yields
"""
