/**
 * Which bases are being built. Concurrent callers of one key share the work, whichever of them started it.
 *
 * Work in the background must not delay a request: it gets only the CPU time that is left (boot.ts). When a request needs
 * another base, which is booted one at a time, work in the background is aborted. When a request needs the same base, the
 * work continues for that request, in the foreground from then on.
 */
import type { WantedBase } from './key.ts'

export type Build = {
  readonly wanted: WantedBase
  isBackground: boolean
  /** For people. */
  progress: string
  /** Called when a request joins work in the background. */
  onForeground?: () => void
  /** Aborted to yield. The host agent's own stop is another signal. */
  readonly yielding: AbortSignal
}

/** Why work in the background has ended. It can be started again later. */
export class Yielded extends Error {
  override name = 'Yielded'
}

type Entry<T> = { build: Build; work: Promise<T>; yield: AbortController }

export class Builds<T> {
  readonly #entries = new Map<string, Entry<T>>()

  list(): Build[] {
    return [...this.#entries.values()].map(({ build }) => build)
  }

  async run(
    wanted: WantedBase,
    { isBackground }: { isBackground: boolean },
    start: (build: Build) => Promise<T>,
  ): Promise<T> {
    // Work that was aborted is still removing its files.
    for (let known = this.#entries.get(wanted.key); known; known = this.#entries.get(wanted.key)) {
      if (!known.build.yielding.aborted) {
        if (!isBackground) promote(known.build)
        return known.work
      }
      await known.work.catch(() => {}) // Reported to those who started or joined it.
    }
    if (!isBackground) this.#abortBackground()
    const controller = new AbortController()
    const build: Build = { wanted, isBackground, progress: 'starting', yielding: controller.signal }
    const work = start(build).finally(() => this.#entries.delete(wanted.key))
    this.#entries.set(wanted.key, { build, work, yield: controller })
    return work
  }

  #abortBackground(): void {
    for (const entry of this.#entries.values()) {
      if (entry.build.isBackground) entry.yield.abort(new Yielded('another base is needed first'))
    }
  }
}

function promote(build: Build): void {
  if (!build.isBackground) return
  build.isBackground = false
  build.onForeground?.()
}
