/** The first message of a real TLS client, and the same message in other record sizes. */
import { Duplex } from 'node:stream'
import tls from 'node:tls'

const HEADER_BYTES = 5

/** As Node's client sends it, in one record. Without a name it has no server_name extension. */
export function clientHello(name?: string): Promise<Buffer> {
  const { promise, resolve } = Promise.withResolvers<Buffer>()
  const wire = new Duplex({ read() {}, write: (chunk: Buffer) => resolve(chunk) })
  const client = tls.connect({ socket: wire, ...(name === undefined ? {} : { servername: name }) })
  client.on('error', () => {})
  return promise.finally(() => {
    client.destroy()
    wire.destroy()
  })
}

/** The same message in records of `bytes` bytes each. */
export function inRecords(hello: Buffer, bytes: number): Buffer[] {
  const message = hello.subarray(HEADER_BYTES)
  return Array.from({ length: Math.ceil(message.length / bytes) }, (_, index) => {
    const part = message.subarray(index * bytes, (index + 1) * bytes)
    return Buffer.concat([hello.subarray(0, 3), Buffer.from([part.length >> 8, part.length & 255]), part])
  })
}
