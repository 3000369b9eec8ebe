/**
 * Checks that guests trust the certificate authorities that were added to this machine. A company that intercepts TLS adds
 * its authority to every machine; without it, npm and pip in a guest fail.
 */
import { existsSync } from 'node:fs'
import { readConfig } from '@warren/kit/config'
import { SETTINGS } from '../config.ts'
import { nameOfCertificate, readCertificates } from '../guest/certificates.ts'
import type { Check, CheckResult, Machine } from './check.ts'

/** Where administrators add authorities: on Debian and Alpine, and on Red Hat. */
const LOCAL_FOLDERS = ['/usr/local/share/ca-certificates', '/etc/pki/ca-trust/source/anchors']
const NAMES_SHOWN = 3

export const authorityChecks = ({ env }: Pick<Machine, 'env'>): Check[] => [
  {
    name: 'certificate authorities of guests',
    needed: 'recommended',
    run: () => checkAuthorities(readConfig({ file: SETTINGS.guestCaFile }, env).file),
  },
]

export async function checkAuthorities(guestCaFile: string, folders = LOCAL_FOLDERS): Promise<CheckResult> {
  const trusted = guestCaFile === '' ? [] : await readCertificates(guestCaFile)
  for (const folder of folders.filter((folder) => existsSync(folder))) {
    const missing = (await readCertificates(folder)).filter((pem) => !trusted.includes(pem))
    if (missing.length === 0) continue
    const names = missing.slice(0, NAMES_SHOWN).map(nameOfCertificate)
    const more = missing.length > NAMES_SHOWN ? ` and ${missing.length - NAMES_SHOWN} more` : ''
    return {
      ok: false,
      detail: `this machine trusts ${names.join(', ')}${more}; guests do not, so TLS may fail in them`,
      fix: `set WARREN_GUEST_CA_FILE=${folder}`,
    }
  }
  if (trusted.length > 0) return { ok: true, detail: `guests trust ${trusted.length} of WARREN_GUEST_CA_FILE` }
  return { ok: true, detail: 'none were added to this machine' }
}
