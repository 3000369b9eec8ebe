/**
 * What stands before an API that is reached by https: it ends TLS and passes bytes on, each direction until its own end.
 * Its certificate comes from an authority that nobody knows.
 */
import { spawnSync } from 'node:child_process'
import { once } from 'node:events'
import { readFileSync, writeFileSync } from 'node:fs'
import net from 'node:net'
import path from 'node:path'
import tls from 'node:tls'

export type TlsProxy = {
  port: number
  /** Of the authority: what NODE_EXTRA_CA_CERTS takes. */
  caFile: string
  close(): void
}

/** At an address of this machine. */
export async function startTlsProxy(folder: string, address: string, targetUrl: string): Promise<TlsProxy> {
  const { caFile, key, cert } = makeCertificates(folder)
  const target = new URL(targetUrl)
  const server = tls.createServer({ key, cert, allowHalfOpen: true }, (client) => {
    const inner = net.connect({ host: target.hostname, port: Number(target.port), allowHalfOpen: true })
    client.pipe(inner).pipe(client)
    for (const [one, other] of [[client, inner] as const, [inner, client] as const]) {
      one.on('error', () => other.destroy())
    }
  })
  // Clients that do not know the authority hang up in the middle of the handshake.
  server.on('tlsClientError', () => {})
  server.listen(0, address)
  await once(server, 'listening')
  return { port: (server.address() as net.AddressInfo).port, caFile, close: () => server.close() }
}

function makeCertificates(folder: string): { caFile: string; key: Buffer; cert: Buffer } {
  const at = (name: string) => path.join(folder, name)
  const openssl = (...args: string[]) => {
    const { status, stderr } = spawnSync('openssl', args, { encoding: 'utf8' })
    if (status !== 0) throw new Error(`openssl ${args[0]}: ${stderr}`)
  }
  const pair = (name: string) => ['-newkey', 'ec', '-pkeyopt', 'ec_paramgen_curve:P-256', '-nodes', '-keyout', at(name)]
  writeFileSync(at('names'), 'subjectAltName=DNS:localhost,IP:127.0.0.1,IP:::1\n')
  openssl('req', '-x509', ...pair('ca.key'), '-out', at('ca.pem'), '-days', '2', '-subj', '/CN=nobody knows me')
  openssl('req', ...pair('key'), '-out', at('request'), '-subj', '/CN=localhost')
  const signer = ['-CA', at('ca.pem'), '-CAkey', at('ca.key'), '-CAcreateserial']
  openssl('x509', '-req', '-in', at('request'), ...signer, '-out', at('cert'), '-days', '2', '-extfile', at('names'))
  return { caFile: at('ca.pem'), key: readFileSync(at('key')), cert: readFileSync(at('cert')) }
}
