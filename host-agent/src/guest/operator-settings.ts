/**
 * What the operator sets for all guests, for networks that intercept TLS or that are left through a proxy: certificate
 * authorities and environment variables. They are part of a base, so a create costs nothing more; a resume and a fork
 * send them again, because the snapshot may be older than the settings.
 */
import { createHash } from 'node:crypto'
import { errorText } from '@warren/kit/error-text'
import type { GuestIdentityBody } from '@warren/protocol'
import type { Config } from '../config.ts'
import { readCertificates } from './certificates.ts'

export type OperatorSettings = Required<Pick<GuestIdentityBody, 'ca_certificates' | 'default_envs'>>

type Settings = Pick<
  Config,
  'guestCaFile' | 'guestHttpProxy' | 'guestHttpsProxy' | 'guestNoProxy' | 'guestHost' | 'cidr'
>

/** Blocks of sandboxes are chosen in it, unless WARREN_SANDBOX_CIDR names another (choose-network.ts). */
const SANDBOX_BLOCKS = '100.64.0.0/10'

/** Both are written by the guest agent (guest-agent/src/trust.rs). The first has only the operator's certificates. */
const OPERATOR_BUNDLE = '/etc/ssl/certs/warren.pem'
const FULL_BUNDLE = '/etc/ssl/certs/ca-certificates.crt'

/** For programs that do not use the trust store of the system. */
const CA_ENVS = {
  NODE_EXTRA_CA_CERTS: OPERATOR_BUNDLE,
  PIP_CERT: FULL_BUNDLE,
  REQUESTS_CA_BUNDLE: FULL_BUNDLE,
  SSL_CERT_FILE: FULL_BUNDLE,
}

export async function readOperatorSettings(config: Settings): Promise<OperatorSettings> {
  const certificates = config.guestCaFile === '' ? [] : await readCaFile(config.guestCaFile)
  return {
    ca_certificates: certificates,
    default_envs: { ...(certificates.length > 0 && CA_ENVS), ...proxyEnvs(config) },
  }
}

/** For the key of a base. Not the settings themselves, because a proxy's URL may contain a password. */
export const digestOf = (settings: OperatorSettings): string =>
  createHash('sha256').update(JSON.stringify(settings)).digest('hex')

export const hasOperatorSettings = ({ ca_certificates, default_envs }: OperatorSettings): boolean =>
  ca_certificates.length > 0 || Object.keys(default_envs).length > 0

async function readCaFile(file: string): Promise<string[]> {
  try {
    const certificates = await readCertificates(file)
    if (certificates.length === 0) throw new Error('it contains no certificate in PEM format')
    return certificates
  } catch (error) {
    throw new Error(`failed to read WARREN_GUEST_CA_FILE ${file}: ${errorText(error)}`, { cause: error })
  }
}

/** Programs read them in lower case, upper case or both. */
function proxyEnvs({ guestHttpProxy, guestHttpsProxy, guestNoProxy, guestHost, cidr }: Settings) {
  if (guestHttpProxy === undefined && guestHttpsProxy === undefined) return {}
  const direct = ['localhost', '127.0.0.1', '::1', guestHost, cidr || SANDBOX_BLOCKS, '.fc.local'].join(',')
  const envs = { http_proxy: guestHttpProxy, https_proxy: guestHttpsProxy, no_proxy: guestNoProxy || direct }
  return Object.fromEntries(
    Object.entries(envs).flatMap(([name, value]): [string, string][] =>
      value === undefined
        ? []
        : [
            [name, value],
            [name.toUpperCase(), value],
          ],
    ),
  )
}
