/** What the proxy counts since it started. Nothing of it has names that a guest or a server chooses. */
import type { Socket } from 'node:net'
import { LATENCY_BOUNDS, type S3ProxyCounts } from '../s3-proxy-protocol.ts'

export class Counts {
  readonly #requests = new Map<string, S3ProxyCounts['requests'][number]>()
  readonly #latencies = Array.from({ length: LATENCY_BOUNDS.length + 1 }, () => 0)
  #sumSeconds = 0
  readonly #open = new Set<Socket>()
  /** Of connections that are closed. */
  readonly #bytes = { fromGuests: 0, toGuests: 0 }

  /** `operation` is empty if the request was not parsed. */
  addRequest(operation: string, status: number): void {
    const name = `${operation} ${status}`
    const counted = this.#requests.get(name) ?? { operation, status, count: 0 }
    counted.count++
    this.#requests.set(name, counted)
  }

  /** From a request to a server until the head of its answer. */
  addLatency(seconds: number): void {
    const at = LATENCY_BOUNDS.findIndex((bound) => seconds <= bound)
    this.#latencies[at === -1 ? LATENCY_BOUNDS.length : at]!++
    this.#sumSeconds += seconds
  }

  addConnection(socket: Socket): void {
    this.#open.add(socket)
    socket.once('close', () => {
      this.#open.delete(socket)
      addBytes(this.#bytes, socket)
    })
  }

  read(): Pick<S3ProxyCounts, 'requests' | 'bytes' | 'latency'> {
    const bytes = { ...this.#bytes }
    for (const socket of this.#open) addBytes(bytes, socket)
    return {
      requests: [...this.#requests.values()],
      bytes,
      latency: { counts: [...this.#latencies], sumSeconds: this.#sumSeconds },
    }
  }
}

function addBytes(bytes: S3ProxyCounts['bytes'], { bytesRead, bytesWritten }: Socket): void {
  bytes.fromGuests += bytesRead
  bytes.toGuests += bytesWritten
}
