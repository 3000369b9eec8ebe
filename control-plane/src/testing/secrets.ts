/** The secrets key of tests. Every test database names it as its current one (database.ts). */
import { parseKey } from '../secrets/cipher.ts'
import { createSecrets, type Secrets } from '../secrets/secrets.ts'

export const TEST_SECRETS_KEY = '5ec2e75f0000000000000000000000005ec2e75f000000000000000000000000'
export const TEST_SECRET_KEY = parseKey(TEST_SECRETS_KEY)

export const createTestSecrets = (): Secrets => createSecrets([TEST_SECRET_KEY], TEST_SECRET_KEY.id)
