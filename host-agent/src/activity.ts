/** For how long no request has made this host work, so that work which can wait does not delay one. */
export type Activity = ReturnType<typeof createActivity>

export function createActivity(now: () => number = () => performance.now()) {
  let underWay = 0
  let lastAt = now()
  return {
    /** Counts as activity until it settles. */
    async run<T>(work: () => Promise<T>): Promise<T> {
      underWay++
      try {
        return await work()
      } finally {
        underWay--
        lastAt = now()
      }
    },
    /** 0 while something is under way. */
    idleMs: (): number => (underWay > 0 ? 0 : now() - lastAt),
  }
}
