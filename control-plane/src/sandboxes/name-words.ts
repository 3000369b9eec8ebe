/** The words of generated sandbox names: lower case letters only, about 100,000 pairs. */

const words = (text: string): string[] => text.trim().split(/\s+/)

export const ADJECTIVES: readonly string[] = words(`
  able agile airy alert amber ample ancient apt arctic ardent artful astute autumn avid awake azure balmy basic bold
  bonny brave breezy brief bright brisk broad bronze busy calm candid careful casual cedar cheery chief chilly civil
  classic clean clear clever coastal cool copper coral cosmic cosy crisp curious curly dapper daring dawn deep deft
  dewy direct dreamy dusky dusty eager early earnest easy elder elegant emerald epic equal exact fabled fair famous
  fancy fast fearless fine firm fleet floral fluent fluffy fond frank free fresh frosty gentle giant gilded glad
  gleaming global golden good graceful grand grateful great green happy hardy hasty hazel hearty hidden honest
  hopeful humble ideal indigo inner ivory jade jaunty jolly jovial joyful keen kind laced large latent lawful leafy
  level light lilac limber little lively local lofty long loud loyal lucid lucky lunar magic major maple marble
  mellow merry mighty mild mint misty modest mossy motley native neat new nimble noble northern novel oaken olive
  opal open orange orderly paced patient peaceful pearly perky placid plain playful pleasant plucky polar polite
  prime proper proud pure quaint quick quiet radiant rapid rare ready regal rich ripe robust rosy round royal ruby
  rugged rural rustic sable safe sage sandy scarlet sedate serene shady sharp shiny short silent silken
  silver simple sincere sleek slender slim smart smooth snowy social soft solar solid sonic sound southern spare
  speedy spicy spring spry stable starry steady steep still stout strong sturdy subtle sudden summer sunny superb
  supple sure sweet swift tall tame tawny tender thankful thrifty tidal tidy timely tiny topaz tranquil trim true
  trusty twilight upbeat upper urban useful valid vast velvet verdant vital vivid warm wary wavy western whole wide
  wild windy winter wise witty wooden woolly worthy young zany zealous zesty
`)

export const ANIMALS: readonly string[] = words(`
  aardvark albatross alpaca anchovy anole ant antelope armadillo auk avocet axolotl baboon badger barbet barnacle
  basilisk bass bat beagle bear beaver bee beetle bison bittern blackbird bluebird boar bobcat bongo bonobo booby
  bream buffalo bullfinch bunting burbot bustard butterfly buzzard caiman camel canary capybara caracal cardinal
  caribou carp cassowary cat catfish chaffinch chameleon chamois cheetah chickadee chinchilla chipmunk cicada civet
  clam coati cobra cockatoo cod colt condor coot coral cormorant cougar cow coyote crab crane crayfish cricket
  crocodile crow cuckoo curlew cuttlefish dace damselfly deer dhole dingo dipper dodo dolphin donkey dormouse dove
  dragonfly duck dugong dunlin eagle echidna eel egret eider eland elephant elk emu ermine falcon fawn ferret finch
  firefly flamingo flounder flycatcher fox frog fulmar gannet gar gazelle gecko gerbil gibbon giraffe gnu goat
  godwit goldfinch goose gopher gorilla goshawk grackle grasshopper grebe greenfinch grouper grouse guanaco gull
  guppy haddock hake halibut hamster hare harrier hawk hedgehog heron herring hoopoe hornbill horse hummingbird
  husky hyena ibex ibis iguana impala jackal jackdaw jaguar jay jellyfish junco kangaroo kestrel kingfisher kite
  kiwi koala koi kookaburra krill kudu ladybird lamb lamprey lapwing lark lemming lemur leopard limpet linnet lion
  lizard llama loach lobster locust loon lynx lyrebird macaque macaw mackerel magpie mallard manatee mandrill manta
  mantis margay marlin marmot marten martin meerkat merlin mink minnow mole mongoose moorhen moose moth mouse mule
  mullet murre muskox narwhal newt nightingale nightjar numbat nuthatch ocelot octopus okapi opossum orca oriole
  oryx osprey ostrich otter owl oyster panda pangolin panther parakeet parrot partridge peacock pelican penguin
  perch petrel pheasant pigeon pika pike pintail pipit plover polecat pony porcupine porpoise possum prawn ptarmigan
  puffin puma python quail quetzal quokka rabbit raccoon ram raven redstart reindeer rhea robin rook rooster sable
  salamander salmon sandpiper sardine scallop seahorse seal serval shark sheep shrew shrike shrimp skink skua
  skylark sloth snail snipe sparrow spoonbill squid squirrel starfish starling stingray stoat stork sturgeon sunbird
  swallow swan swift takin tanager tapir tarsier teal tern terrapin thrush tiger toad tortoise toucan trout tuna
  turbot turkey turtle urchin vicuna viper vole vulture wagtail wallaby walrus warbler weasel whale whimbrel whippet
  wigeon wolf wolverine wombat woodcock woodpecker wren yak zebra zebu
`)
