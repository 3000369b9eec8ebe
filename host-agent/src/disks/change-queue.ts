/**
 * Runs changes one after the other, each with its revision. At most one waits: a newer change takes its place, and the callers of the
 * older one get the outcome of the newer, which includes it. So callers that repeat their requests do not make the queue grow,
 * however long a change takes.
 */
type Change<T> = { revision: number; run: () => Promise<T>; outcome: PromiseWithResolvers<T> }

export class ChangeQueue<T> {
  #running: Change<T> | undefined
  #waiting: Change<T> | undefined

  /** The outcome of the newest change that has not settled. */
  get pending(): Promise<T> | undefined {
    return (this.#waiting ?? this.#running)?.outcome.promise
  }

  /** `run` is not called if a change with this or a higher revision has not settled, or follows before it is the turn of this one. */
  add(revision: number, run: () => Promise<T>): Promise<T> {
    const newest = this.#waiting ?? this.#running
    if (newest !== undefined && revision <= newest.revision) return newest.outcome.promise
    const outcome = this.#waiting?.outcome ?? Promise.withResolvers<T>()
    this.#waiting = { revision, run, outcome }
    if (this.#running === undefined) this.#runNext()
    return outcome.promise
  }

  #runNext(): void {
    const next = this.#waiting
    this.#running = next
    this.#waiting = undefined
    if (next === undefined) return
    const { resolve, reject } = next.outcome
    void next
      .run()
      .then(resolve, reject)
      .finally(() => this.#runNext())
  }
}
