"""poolbench-driver: plan, run and report PoolBench.

From the top down; a package imports only what stands below it (`lint-imports` checks it):

    cli         commands: arguments in, text and exit codes out
    job         a run in order: names, plan, loop, tables, report
    report      tables of a run to its page          comparison  two runs, cell by cell
    assemble    artifacts to the tables of a run     release     steered texts as a dataset
    estimate    time, bytes and money of a run before it starts
    reproduction  an official table beside a run
    records     records of runs in the object store
    rundir      the run's folder
    run         the loop, its display, the deletion of sensitive texts
    plan        configuration to tasks and keys; pure
    imports     activations, scorers and autoencoders from elsewhere
    models      depth, width and revision            corpora     passages and prompts
    adhoc       files and requests of the commands that ask one service
    cluster     store, queue, leases and HTTP of the services
"""
