/**
 * The commands of `warren`. Those that belong to a service are separate programs, started with their arguments
 * unchanged: `admin` of the control plane, `images`, `bases`, `snapshots` and `doctor` of the host agent.
 */
import { VERSION } from '@warren/kit/version'
import { spellCommand, warrenCommand } from '@warren/kit/warren-command'
import { Command, Help } from 'commander'
import { printCaCertificate } from './ca.ts'
import { printEnv } from './env.ts'
import { installCommand, uninstallCommand } from './install.ts'
import { runProgram } from './run-program.ts'
import { runSsh } from './ssh.ts'
import { startInstance } from './start.ts'
import { openTunnel } from './tunnel.ts'
import { listenForWebhooks } from './webhooks-listen.ts'

const renderSshHelp = (): string => `
Examples:
  ${warrenCommand()} ssh --add-key ~/.ssh/id_ed25519.pub web     add a key, then open a login shell
  ${warrenCommand()} ssh web uname -a                            run a command
  ${warrenCommand()} ssh web -N -L 8000:localhost:80             forward a port
  ${warrenCommand()} ssh --config >> ~/.ssh/config               then: scp report.pdf web.warren:

Uses WARREN_BASE_URL and WARREN_API_KEY, or without them the Warren that runs on this machine.`

const PROGRAMS = [
  {
    name: 'admin',
    description: 'manage users, plans, credit and API keys',
    file: 'control-plane/src/admin/main.ts',
    needsDatabase: true,
  },
  {
    name: 'images',
    description: 'list, build, import and remove images',
    file: 'host-agent/src/images/main.ts',
    needsDatabase: false,
  },
  {
    name: 'bases',
    description: 'list and prepare bases, the booted machines that sandboxes are cloned from',
    file: 'host-agent/src/bases/main.ts',
    needsDatabase: false,
  },
  {
    name: 'snapshots',
    description: 'list, verify and clean up the snapshots of paused sandboxes',
    file: 'host-agent/src/snapshots/main.ts',
    needsDatabase: false,
  },
  {
    name: 'doctor',
    description: 'check whether this machine can run Warren, and print how to fix what is missing',
    file: 'host-agent/src/doctor/main.ts',
    needsDatabase: false,
  },
]

export function createCli(): Command {
  const cli = new Command('warren')
    .description('Isolated microVM sandboxes on your own machine')
    .version(VERSION)
    .enablePositionalOptions()
    .configureHelp({ commandUsage: (command) => spellCommand(new Help().commandUsage(command)) })
    .showHelpAfterError()

  cli
    .command('start')
    .description('start Warren on this machine, in the foreground; Ctrl-C stops it')
    .action(startInstance)

  cli
    .command('env')
    .description('print WARREN_BASE_URL and WARREN_API_KEY of the running instance, one per line')
    .action(printEnv)

  cli
    .command('ca')
    .description('print the certificate of the local authority that signs ingress certificates')
    .action(printCaCertificate)

  cli
    .command('ssh')
    .description('open an SSH session in a sandbox, through a tunnel')
    .passThroughOptions()
    .allowUnknownOption()
    .usage('[options] [user@]<sandbox> [ssh options and command...]')
    .argument('[sandbox]', 'name or id of the sandbox')
    .argument('[arguments...]', 'passed to ssh: options, a command')
    .option('--add-key <file>', 'first add a public key to the sandbox')
    .option('--config', 'print a block for ~/.ssh/config, so that ssh, scp, sftp and rsync reach <sandbox>.warren')
    .addHelpText('after', renderSshHelp)
    .action(runSsh)

  cli
    .command('tunnel')
    .description('connect stdin and stdout to a port inside a sandbox, for example as ProxyCommand of ssh')
    .argument('<sandbox>', 'name or id of the sandbox')
    .argument('<port>', 'port inside the sandbox')
    .action(openTunnel)

  const webhooks = cli.command('webhooks').description('receive webhooks on this machine')
  webhooks
    .command('listen')
    .description('print incoming events and verify their signatures, until Ctrl-C')
    .argument('<url-or-port>', 'port on this machine, or the URL under which the API reaches it')
    .option('--events <actions>', 'actions to receive, separated by commas (default: all)')
    .option('--port <port>', 'port to listen on, if a proxy or tunnel leads from the URL to it')
    .option('--secret <secret>', 'verify with the secret of an existing endpoint instead of creating one')
    .option('--json', 'print the bodies as they were received')
    .action(listenForWebhooks)

  cli
    .command('install')
    .description('link this command onto the PATH, so that it can be called as `warren` from every directory')
    .argument('[folder]', 'a folder on the PATH (default: /usr/local/bin as root, ~/.local/bin otherwise)')
    .action(installCommand)

  cli
    .command('uninstall')
    .description('remove the link that install created')
    .argument('[folder]', 'the folder that was given to install')
    .action(uninstallCommand)

  for (const { name, description, file, needsDatabase } of PROGRAMS) {
    cli
      .command(name)
      .description(description)
      .helpOption(false)
      .passThroughOptions()
      .allowUnknownOption()
      .argument('[arguments...]')
      .action((args: string[]) => runProgram(file, args, { needsDatabase }))
  }

  return cli
}
