/** The first message of a real TLS client, and other ways to put it on the wire. */
import { Duplex } from 'node:stream'
import tls from 'node:tls'

const HEADER_BYTES = 5

/** As Node's own client sends it: one record. Without a name it carries no server_name at all. */
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

/** The same message in records of so many bytes. */
export function inRecords(hello: Buffer, bytes: number): Buffer[] {
  const message = hello.subarray(HEADER_BYTES)
  return Array.from({ length: Math.ceil(message.length / bytes) }, (_, index) => {
    const part = message.subarray(index * bytes, (index + 1) * bytes)
    return Buffer.concat([hello.subarray(0, 3), Buffer.from([part.length >> 8, part.length & 255]), part])
  })
}
