/** A number of slots. Those who wait get one in the order in which they asked. */
export type Slots = { take(): Promise<void>; give(): void }

export function createSlots(count: number): Slots {
  let free = count
  const waiting: (() => void)[] = []
  return {
    take() {
      if (free > 0) {
        free--
        return Promise.resolve()
      }
      return new Promise((resolve) => waiting.push(resolve))
    },
    give() {
      const next = waiting.shift()
      if (next) next()
      else free++
    },
  }
}
