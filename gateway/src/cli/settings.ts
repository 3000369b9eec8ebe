/** What the commands read from the environment. Those of the instance are set by `warren` (cli/src/run-program.ts). */
import { text } from '@warren/kit/config'

export const CLIENT_SETTINGS = {
  url: text('WARREN_GATEWAY_URL', {
    default: '',
    defaultText: 'the gateway of the Warren that runs in this clone',
    description: 'Gateway that `./warren gateway` uses.',
  }),
  walletKey: text('WARREN_GATEWAY_WALLET_KEY', {
    default: '',
    description: 'Private key of the wallet that `./warren gateway` uses, if there is no `--key-file`.',
  }),
}
