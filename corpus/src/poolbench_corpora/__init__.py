"""Corpora: make, read, check and audit the passages of concepts.

From the top down; a package imports only what stands below it (`lint-imports` checks it):

    folders     import and validate folders of corpora
    probing     sets of labelled texts and spans for linguistic probing
    own         concepts and texts that users bring
    audit       what a probe could read instead of the concept
    io          the published layout, and tables
    planted     the grammar                             checks      the construction rules
    near        near-duplicates                         partition   which documents may be used for what
    reading     records of files
"""
