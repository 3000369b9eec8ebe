/**
 * A reverse proxy that terminates TLS in front of the API and forwards bytes, each direction until its end. Its
 * certificate comes from an authority that no client trusts by default.
 */
import { spawnSync } from 'node:child_process'
import { once } from 'node:events'
import { readFileSync, writeFileSync } from 'node:fs'
import net from 'node:net'
import path from 'node:path'
import tls from 'node:tls'

export type TlsProxy = {
  port: number
  /** The certificate of the authority, for NODE_EXTRA_CA_CERTS. */
  caFile: string
  close(): void
}

/** Listens at an address of this machine. */
export async function startTlsProxy(folder: string, address: string, targetUrl: string): Promise<TlsProxy> {
  const { caFile, key, cert } = createCertificates(folder)
  const target = new URL(targetUrl)
  const server = tls.createServer({ key, cert, allowHalfOpen: true }, (client) => {
    const upstream = net.connect({ host: target.hostname, port: Number(target.port), allowHalfOpen: true })
    client.pipe(upstream).pipe(client)
    for (const [one, other] of [[client, upstream] as const, [upstream, client] as const]) {
      one.on('error', () => other.destroy())
    }
  })
  // Clients that do not trust the authority disconnect during the handshake.
  server.on('tlsClientError', () => {})
  server.listen(0, address)
  await once(server, 'listening')
  return { port: (server.address() as net.AddressInfo).port, caFile, close: () => server.close() }
}

function createCertificates(folder: string): { caFile: string; key: Buffer; cert: Buffer } {
  const at = (name: string) => path.join(folder, name)
  const openssl = (...args: string[]) => {
    const { status, stderr } = spawnSync('openssl', args, { encoding: 'utf8' })
    if (status !== 0) throw new Error(`openssl ${args[0]}: ${stderr}`)
  }
  const pair = (name: string) => ['-newkey', 'ec', '-pkeyopt', 'ec_paramgen_curve:P-256', '-nodes', '-keyout', at(name)]
  writeFileSync(at('names'), 'subjectAltName=DNS:localhost,IP:127.0.0.1,IP:::1\n')
  openssl(
    'req',
    '-x509',
    ...pair('ca.key'),
    '-out',
    at('ca.pem'),
    '-days',
    '2',
    '-subj',
    '/CN=untrusted test authority',
  )
  openssl('req', ...pair('key'), '-out', at('request'), '-subj', '/CN=localhost')
  const signer = ['-CA', at('ca.pem'), '-CAkey', at('ca.key'), '-CAcreateserial']
  openssl('x509', '-req', '-in', at('request'), ...signer, '-out', at('cert'), '-days', '2', '-extfile', at('names'))
  return { caFile: at('ca.pem'), key: readFileSync(at('key')), cert: readFileSync(at('cert')) }
}
