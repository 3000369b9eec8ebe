/** Timeouts elapse only when the test says so, for limits that are longer than a test should wait. */
import type { TestContext } from 'node:test'

export function mockTimeouts(t: TestContext): { tick(ms: number): void } {
  t.mock.timers.enable({ apis: ['setTimeout'] })
  return { tick: (ms) => t.mock.timers.tick(ms) }
}
