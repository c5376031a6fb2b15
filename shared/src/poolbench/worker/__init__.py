"""What a worker of the queue needs: a task claimed and run, its inputs and outputs, its failure recorded."""
