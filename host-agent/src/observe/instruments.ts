/**
 * Counters and histograms in the data model of Prometheus. The control plane uses prom-client, which would add 60 ms to
 * the start of the host agent; what the host agent needs of it is this file.
 */
import type { HostMetricFamily, HostMetricSample } from '@warren/protocol'

type Labels = Record<string, string>
type Description = { name: string; help: string }

export class Counter<Names extends string> {
  readonly #description: Description
  readonly #samples = new Map<string, HostMetricSample>()

  constructor(description: Description) {
    this.#description = description
  }

  increase(labels: Record<Names, string>, by = 1): void {
    const key = keyOf(labels)
    const sample = this.#samples.get(key)
    if (sample) sample.value += by
    else this.#samples.set(key, { labels, value: by })
  }

  collect(): HostMetricFamily {
    return { ...this.#description, type: 'counter', samples: [...this.#samples.values()] }
  }
}

type Series = { labels: Labels; counts: number[]; count: number; sum: number }

export class Histogram<Names extends string> {
  readonly #description: Description
  /** Upper bounds in ascending order, without infinity. */
  readonly #bounds: readonly number[]
  readonly #series = new Map<string, Series>()

  constructor(description: Description, bounds: readonly number[]) {
    this.#description = description
    this.#bounds = bounds
  }

  observe(labels: Record<Names, string>, value: number): void {
    const series = this.#getSeries(labels)
    const at = this.#bounds.findIndex((bound) => value <= bound)
    if (at !== -1) series.counts[at]!++
    series.count++
    series.sum += value
  }

  collect(): HostMetricFamily {
    const samples = [...this.#series.values()].flatMap((series) => this.#render(series))
    return { ...this.#description, type: 'histogram', samples }
  }

  #getSeries(labels: Labels): Series {
    const key = keyOf(labels)
    const series = this.#series.get(key) ?? { labels, counts: this.#bounds.map(() => 0), count: 0, sum: 0 }
    this.#series.set(key, series)
    return series
  }

  /** Buckets are cumulative: each counts everything up to its bound. */
  #render({ labels, counts, count, sum }: Series): HostMetricSample[] {
    let below = 0
    const buckets = this.#bounds.map((bound, i) => {
      below += counts[i]!
      return bucket(labels, String(bound), below)
    })
    return [
      ...buckets,
      bucket(labels, '+Inf', count),
      { suffix: '_sum', labels, value: sum },
      { suffix: '_count', labels, value: count },
    ]
  }
}

/** The current values of something that is not counted as it happens; `samples` maps label values to numbers. */
export function gauge<Name extends string>(
  name: string,
  help: string,
  label: Name,
  samples: Record<string, number>,
): HostMetricFamily {
  return { name, help, type: 'gauge', samples: renderSamples(label, samples) }
}

export const renderSamples = (label: string, samples: Record<string, number>): HostMetricSample[] =>
  Object.entries(samples).map(([name, value]) => ({ labels: { [label]: name }, value }))

const bucket = (labels: Labels, le: string, value: number): HostMetricSample => ({
  suffix: '_bucket',
  labels: { ...labels, le },
  value,
})

const keyOf = (labels: Labels): string => Object.values(labels).join('\n')
